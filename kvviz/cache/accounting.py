"""The Ledger of a cache: the tokens and bytes of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Any

import torch

from ..methods.capabilities import HostMetadata
from ..methods.held import held_tokens, merged_bytes
from ..methods.selection import member_mask
from ..offload.layer_store import LayerStore
from ..trace import Ledger
from .layer_cache import LayerCache
from .rows import Run


def ledger_of(layers: Sequence[LayerCache], exact_layers: tuple[int, ...]) -> Ledger:
    """The ledger of these layers. The prompt of a dense layer counts as selected only if all layers are dense."""
    selecting = [layer for layer in layers if not layer.dense]
    counts = torch.tensor([_counts(layer) for layer in selecting or layers], dtype=torch.float64)
    sinks, recent, selected, generated = counts.mean(0).tolist() if len(counts) else (0.0,) * 4
    kept_bytes: dict[str, int] = {}
    peak_bytes = 0
    for layer in layers:
        kept = layer.store.kept_bytes()
        kept["device"] += sum(merged_bytes(run.method, run.state) for run in _states(layer))
        peak_bytes += max(layer.prompt_bytes, kept["device"])
        for tier, count in kept.items():
            kept_bytes[tier] = kept_bytes.get(tier, 0) + count
    states = [state for layer in layers for state in layer.states]
    extra_bytes = sum(state.choosing_bytes() for state in states)
    key_bytes = sum(  # of all tokens so far, including the dropped ones
        layer.store.batch * layer.store.key_bytes * layer.store.length for layer in selecting
    )
    metadata_bytes = sum(state.metadata_bytes() for state in states)
    attended_bytes = sum(map(_attended_bytes, layers))
    host_metadata_bytes = sum(s.host_metadata_bytes() for s in states if isinstance(s, HostMetadata))
    return Ledger(
        sinks=sinks,
        recent=recent,
        selected=selected,
        merged=sum(map(_merged, selecting)) / max(len(selecting), 1),
        generated=generated,
        kept_bytes=kept_bytes,
        metadata_bytes=metadata_bytes,
        peak_bytes=peak_bytes + metadata_bytes - host_metadata_bytes,
        auxiliary_bytes=sum(state.auxiliary_bytes() for state in states),
        extra_bytes=extra_bytes,
        extra_share=extra_bytes / key_bytes if key_bytes else 0.0,
        held_bytes=sum(map(_held_bytes, layers)) + metadata_bytes,
        read_bytes=attended_bytes + extra_bytes,
        budgets={layer.context.index: _budget(layer) for layer in selecting if not layer.given.ignores_budget},
        host_metadata_bytes=host_metadata_bytes,
        **_transfers([layer.store for layer in layers]),
        selecting_layers=len(selecting),
        dense_layers=tuple(layer.context.index for layer in layers if layer.dense),
        exact_layers=exact_layers,
    )


def _transfers(stores: Sequence[LayerStore]) -> dict[str, Any]:
    """Bytes moved by the stores of all layers, and the hit rates of their caches."""

    def total(name: str) -> int:
        return sum(getattr(store, name) for store in stores)

    def rate(misses: str, lookups: str) -> float:
        return 1 - total(misses) / total(lookups) if total(lookups) else math.nan

    return {
        **{name: total(name) for name in ("moved_bytes", "filled_bytes", "prefetched_bytes")},
        "hit_rate": rate("misses", "lookups"),
        "group_hit_rate": rate("group_misses", "group_lookups"),
    }


def _states(layer: LayerCache) -> list[Run]:
    return [] if layer.dense else layer.runs()


def _budget(layer: LayerCache) -> float:
    """The layer's budget in tokens, mean over the sequences of the batch."""
    runs = layer.runs()
    found = [run.method.layer_budget(layer.context, run.state.prompt_length) for run in runs]
    counts = [len(range(layer.store.batch)[run.rows]) for run in runs]
    return float(sum(map(mul, found, counts))) / max(sum(counts), 1)


def _attended_bytes(layer: LayerCache) -> int:
    """Bytes of the keys and values that the last step attended to, merged tokens included; all of the batch."""
    if not layer.store.length:
        return 0
    if not layer.store.exact and layer.last is not None:  # tokens differ in their bytes: some are not packed yet
        merged = round(_merged(layer) * layer.context.n_kv_heads * layer.store.batch) * layer.store.token_bytes
        return layer.store.read_bytes(layer.last.indices) + merged
    entries = sum(_counts(layer)) + _merged(layer)
    return round(entries * layer.context.n_kv_heads * layer.store.batch) * layer.store.token_bytes


def _held_bytes(layer: LayerCache) -> int:
    """Bytes that count in a budget in bytes, without metadata: those kept, or attended to by the last step.

    `methods.held` has the rule; here with what the last step attended to, not what it might have.
    """
    held = 0
    for run in _states(layer):
        kept = held_tokens(run.method, run.state, len(range(layer.store.batch)[run.rows]))
        if kept is None:  # the method, and so all rows, keep everything
            return _attended_bytes(layer)
        held += kept * layer.store.token_bytes + merged_bytes(run.method, run.state)
    return held if not layer.dense else _attended_bytes(layer)


def _merged(layer: LayerCache) -> float:
    """Centroids that the last step attended to, mean over KV heads and batch; query heads share those of equal keys."""
    if layer.last is None or layer.last.merged is None:
        return 0.0
    attended = (layer.last.merged.degree > 0).unflatten(1, (layer.context.n_kv_heads, -1)).any(2)  # [B, H, C]
    return float(attended.sum(-1).double().mean())


def _counts(layer: LayerCache) -> list[float]:
    """Sinks, recent, selected and generated tokens that the last step attended to, mean over KV heads and batch.

    A token counts once per KV head, even if several of its query heads attend to it.
    """
    if layer.last is None:  # dense, or no token decoded yet
        return [0.0, 0.0, float(layer.prompt_length), float(layer.store.length - layer.prompt_length)]
    counts = []
    for rows, start, state, method in layer.runs():
        indices = layer.last.indices[rows]
        by_head = member_mask(torch.where(indices < 0, -1, indices - start), state.length)  # [B, R, L]
        attended = by_head.unflatten(1, (layer.context.n_kv_heads, -1)).any(2)  # [B, H, L]
        prompt = state.prompt_length
        sinks = min(method.sinks, prompt)
        recent = min(max(state.length - method.recent_window(state), sinks), prompt)
        ranges = ((0, sinks), (recent, prompt), (sinks, recent), (prompt, state.length))
        counts.append([float(attended[..., slice(*bounds)].sum(-1).double().mean()) for bounds in ranges])
    return torch.tensor(counts, dtype=torch.float64).mean(0).tolist()
