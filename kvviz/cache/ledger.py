"""Where a cache's tokens and bytes went, so that methods can be compared at an honest equal budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..offload.base import LayerStore
from .layer_cache import LayerCache


@dataclass(frozen=True)
class Ledger:
    """Tokens attended per KV head at the last decode step (means over the layers that select), and bytes in all.

    `sinks`, `recent`, `selected`, `merged` (centroids that stand for several tokens) and `generated` add up to
    `attended`. `metadata_bytes` is what the method keeps beside keys and values, `auxiliary_bytes` the part of it that
    is keys kept a second time; `kept_bytes` the memory of keys and values on each tier, spare room and merged tokens
    included. `outer_metadata_bytes` is the part of the metadata kept outside the device.

    `moved_bytes` is what was fetched from another tier, `filled_bytes` the part of it that no step had asked for yet
    (PQCache's blocks), `prefetched_bytes` the metadata that was fetched besides. `hit_rate` is the share of the sought
    tokens, sinks and newest left out, that had a copy on the device; `group_hit_rate` the share of the clusters, pages
    or blocks that needed no fetch, where selections carry details. Both are NaN where nothing was sought.

    `extra_bytes` is what one step reads to choose, beside the attended tokens, in all layers; `extra_share` the same as
    a share of all keys of the layers that select: the extra communication of PQCache (arXiv 2407.12820, section 4.1).
    `dense_layers` attend everything by the method's choice, `exact_layers` because no method serves them.
    """

    sinks: float = 0.0
    recent: float = 0.0
    selected: float = 0.0
    merged: float = 0.0
    generated: float = 0.0
    metadata_bytes: int = 0
    auxiliary_bytes: int = 0
    extra_bytes: int = 0
    extra_share: float = 0.0
    kept_bytes: dict[str, int] = field(default_factory=dict)
    outer_metadata_bytes: int = 0
    moved_bytes: int = 0
    filled_bytes: int = 0
    prefetched_bytes: int = 0
    hit_rate: float = math.nan
    group_hit_rate: float = math.nan
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
        kept["device"] += sum(state.cached_bytes() for state in layer.states)
    states = [state for layer in layers for state in layer.states]
    extra = sum(state.read_bytes() for state in states)
    keys = sum(_key_bytes(layer) for layer in selecting)
    return Ledger(
        sinks=sinks,
        recent=recent,
        selected=selected,
        merged=sum(map(_merged, selecting)) / max(len(selecting), 1),
        generated=generated,
        kept_bytes=kept,
        metadata_bytes=sum(state.metadata_bytes() for state in states),
        auxiliary_bytes=sum(state.auxiliary_bytes() for state in states),
        extra_bytes=extra,
        extra_share=extra / keys if keys else 0.0,
        outer_metadata_bytes=sum(state.outer_metadata_bytes() for state in states),
        **_transfers([layer.store for layer in layers]),
        dense_layers=tuple(layer.context.index for layer in layers if layer.dense),
        exact_layers=exact_layers,
    )


def _transfers(stores: Sequence[LayerStore]) -> dict[str, Any]:
    """What the stores of all layers moved, and how much of what was sought was there."""
    lookups, group_lookups = sum(store.lookups for store in stores), sum(store.group_lookups for store in stores)
    return {
        "moved_bytes": sum(store.moved_bytes for store in stores),
        "filled_bytes": sum(store.filled_bytes for store in stores),
        "prefetched_bytes": sum(store.prefetched_bytes for store in stores),
        "hit_rate": 1 - sum(store.misses for store in stores) / lookups if lookups else math.nan,
        "group_hit_rate": 1 - sum(store.group_misses for store in stores) / group_lookups
        if group_lookups
        else math.nan,
    }


def _key_bytes(layer: LayerCache) -> int:
    """Bytes of the keys of all tokens so far, dropped ones included."""
    heads = layer.store.batch * layer.context.n_kv_heads
    return heads * layer.store.token_bytes // 2 * layer.store.length


def _merged(layer: LayerCache) -> float:
    """Merged tokens that the last step attended, mean over KV heads and batch."""
    if layer.last is None or layer.last.merged is None:
        return 0.0
    return float((layer.last.merged.degree > 0).sum(-1).double().mean())


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
