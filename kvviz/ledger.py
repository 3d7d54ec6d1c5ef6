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
    """Sinks, recent, selected and generated tokens that the last step attended, mean over heads and batch."""
    if layer.last is None:  # dense, or nothing decoded yet
        return [0.0, 0.0, float(layer.prompt_length), float(layer.store.length - layer.prompt_length)]
    counts = []
    for rows, start, state in layer.runs():
        indices = layer.last.indices[rows]
        indices = torch.where(indices < 0, -1, indices - start)  # [B, R, S]
        prompt, method = state.prompt_length, layer.method
        generated = (indices >= prompt).sum(-1)
        recent = ((indices >= state.length - method.recent_window(state)) & (indices < prompt)).sum(-1)
        sinks = ((indices >= 0) & (indices < method.sinks)).sum(-1)
        selected = (indices >= 0).sum(-1) - sinks - recent - generated
        counts.append(torch.stack([sinks, recent, selected, generated]).double().mean((1, 2)))
    return torch.stack(counts).mean(0).tolist()
