"""Where a cache's tokens and bytes went, so that methods can be compared at an honest equal budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from .layer import LayerCache


@dataclass(frozen=True)
class Ledger:
    """Tokens attended per KV head at the last decode step (means over the layers that select), and bytes in all.

    `sinks`, `recent`, `selected`, `merged` and `generated` add up to `attended`. `metadata_bytes` is what the method
    keeps beside keys and values; `kept_bytes` the keys and values on each tier; `moved_bytes` what was fetched from
    another tier. `dense_layers` attend everything by the method's choice, `exact_layers` because no method serves them.
    """

    sinks: float = 0.0
    recent: float = 0.0
    selected: float = 0.0
    merged: float = 0.0
    generated: float = 0.0
    metadata_bytes: int = 0
    kept_bytes: dict[str, int] = field(default_factory=dict)
    moved_bytes: int = 0
    dense_layers: tuple[int, ...] = ()
    exact_layers: tuple[int, ...] = ()

    @property
    def attended(self) -> float:
        """Tokens attended per KV head."""
        return self.sinks + self.recent + self.selected + self.merged + self.generated


def ledger_of(layers: Sequence[LayerCache], exact_layers: tuple[int, ...]) -> Ledger:
    """The ledger of these layers. A dense layer counts its prompt as selected only where no layer selects."""
    selecting = [layer for layer in layers if not layer.dense]
    counts = torch.tensor([_counts(layer) for layer in selecting or layers], dtype=torch.float64)
    sinks, recent, selected, generated = counts.mean(0).tolist() if len(counts) else (0.0,) * 4
    kept: dict[str, int] = {}
    for layer in layers:
        for tier, count in layer.store.kept_bytes().items():
            kept[tier] = kept.get(tier, 0) + count
    return Ledger(
        sinks=sinks,
        recent=recent,
        selected=selected,
        generated=generated,
        kept_bytes=kept,
        metadata_bytes=sum(state.metadata_bytes() for layer in layers for state in layer.states),
        moved_bytes=sum(layer.store.moved_bytes for layer in layers),
        dense_layers=tuple(layer.context.index for layer in layers if layer.dense),
        exact_layers=exact_layers,
    )


def _counts(layer: LayerCache) -> list[float]:
    """Sinks, recent, selected and generated tokens that the last step attended, mean over KV heads and batch.

    A token that several query heads of a KV head attend counts once.
    """
    if layer.last is None:  # dense, or nothing decoded yet
        return [0.0, 0.0, float(layer.prompt_length), float(layer.store.length - layer.prompt_length)]
    counts = []
    for rows, start, state in layer.runs():
        indices = layer.last.indices[rows]
        attended = indices.new_zeros(
            (*indices.shape[:2], state.length + 1), dtype=torch.bool
        )  # the last takes the pads
        attended.scatter_(-1, torch.where(indices < 0, state.length, indices - start), True)
        attended = attended[..., :-1].unflatten(1, (layer.context.n_kv_heads, -1)).any(2)  # [B, H, L]
        prompt = state.prompt_length
        sinks = min(layer.method.sinks, prompt)
        recent = min(max(state.length - layer.method.recent_window(state), sinks), prompt)
        ranges = ((0, sinks), (recent, prompt), (sinks, recent), (prompt, state.length))
        counts.append([float(attended[..., slice(*bounds)].sum(-1).double().mean()) for bounds in ranges])
    return torch.tensor(counts, dtype=torch.float64).mean(0).tolist()
