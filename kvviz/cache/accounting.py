"""Counts the tokens and bytes of a cache's layers into a Ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..methods.capabilities import HostMetadata
from ..methods.state import tensor_bytes
from ..offload.layer_store import LayerStore
from ..trace import Ledger
from .layer_cache import LayerCache


def ledger_of(layers: Sequence[LayerCache], exact_layers: tuple[int, ...]) -> Ledger:
    """The ledger of these layers. A dense layer counts its prompt as selected only where no layer selects."""
    selecting = [layer for layer in layers if not layer.dense]
    counts = torch.tensor([_counts(layer) for layer in selecting or layers], dtype=torch.float64)
    sinks, recent, selected, generated = counts.mean(0).tolist() if len(counts) else (0.0,) * 4
    kept: dict[str, int] = {}
    for layer in layers:
        for tier, count in layer.store.kept_bytes().items():
            kept[tier] = kept.get(tier, 0) + count
        kept["device"] += sum(tensor_bytes([merged.keys, merged.values]) for merged in layer.merged() if merged)
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
        host_metadata_bytes=sum(s.host_metadata_bytes() for s in states if isinstance(s, HostMetadata)),
        **_transfers([layer.store for layer in layers]),
        dense_layers=tuple(layer.context.index for layer in layers if layer.dense),
        exact_layers=exact_layers,
    )


def _transfers(stores: Sequence[LayerStore]) -> dict[str, Any]:
    """What the stores of all layers moved, and how much of what was sought was there."""

    def total(name: str) -> int:
        return sum(getattr(store, name) for store in stores)

    def rate(misses: str, lookups: str) -> float:
        return 1 - total(misses) / total(lookups) if total(lookups) else math.nan

    return {
        **{name: total(name) for name in ("moved_bytes", "filled_bytes", "prefetched_bytes")},
        "hit_rate": rate("misses", "lookups"),
        "group_hit_rate": rate("group_misses", "group_lookups"),
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
