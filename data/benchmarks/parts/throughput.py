"""Throughput: tokens per second of SmolLM2 by batch, methods in turns, up to a limit of the device's memory.

A batch has different texts of equal length: consecutive pieces of the prose. The model prefills each once, separately
and exactly, and all methods get the same queries, keys and values. ClusterKV, PQCache, CTkvr and MagicPIG keep keys and
values in host memory, as in their papers, the others on the device. On a CPU both are the same memory: no bus is
crossed, and the device's size is a limit set here. After each batch, a method's bytes on the device are counted; a
batch that would exceed the limit in proportion is not run (a computed bound, not a failed allocation). This needs about
9 GB of memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from .inputs import model, prose

TOKENS, BUDGET, BATCHES, STEPS, TURNS = 2000, 256, (1, 2, 4, 8), 5, 4
STORES = {
    "full": "device", "clusterkv": "host", "pqcache": "host", "ctkvr": "host", "ctkvr, without rerank": "host",
    "magicpig": "host", "quest": "device", "centroidkv": "device", "streaming_llm": "device",
}  # fmt: skip
LIMIT_BYTES = 2**29  # keys, values and metadata on the device; SmolLM2 in float32 has 46 kB per token


def contender(label: str, budget: int) -> Any:
    """The method with this label in STORES, at a budget.

    "ctkvr, without rerank" attends to the whole union of the probed lists, beyond the budget (CTkvr, fig. 7 and 11).
    """
    import kvviz

    if label == "full":
        return kvviz.methods.create("full")
    fields = {"rerank": False, "attends": "union"} if label == "ctkvr, without rerank" else {}
    return kvviz.methods.create(label.partition(",")[0], budget=budget, **fields)


def run() -> dict[str, Any]:
    """Medians and ranges over turns, by method and batch."""
    lm, length = model(), TOKENS + STEPS * TURNS
    texts = lm.encode(prose())[0, : max(BATCHES) * length].view(-1, length)
    rows = measure(lm.model, texts, TOKENS, BATCHES, LIMIT_BYTES)
    return {
        "model": lm.name, "dtype": str(lm.model.dtype).removeprefix("torch."), "prompt_tokens": TOKENS,
        "budget": BUDGET, "steps_a_turn": STEPS - 1, "turns": TURNS, "limit_bytes": LIMIT_BYTES, "rows": rows,
    }  # fmt: skip


def measure(
    model: Any, texts: Any, tokens: int, batches: Sequence[int], limit_bytes: int, budget: int = BUDGET
) -> list[dict[str, Any]]:
    """One row per method and batch, for texts [B, L]; the first `tokens` are the prompt, the rest is fed step by step.

    A method's last row may have no rate: it is for the first batch that would exceed the limit.
    """
    import torch

    from kvviz.cache.attachment import attached

    rows: list[dict[str, Any]] = []
    held: dict[str, float] = dict.fromkeys(STORES, 0.0)  # bytes per text on the device, from the last batch
    with torch.no_grad(), attached(model):
        prompts = prefilled(model, texts[:, :tokens])
        for batch in batches:
            too_large = {name: batch * count for name, count in held.items() if batch * count > limit_bytes}
            for name, count in too_large.items():
                rows.append(_row(name, batch, count))
                del held[name]
            caches = {name: filled(model, name, prompts, batch, texts.shape[1], budget) for name in held}
            times = decoded(model, caches, texts[:batch, tokens:])
            for name, cache in caches.items():
                rows.append(_row(name, batch, count := device_bytes(cache), times[name]))
                held[name] = count / batch
                print(rows[-1], flush=True)
    return rows


def prefilled(model: Any, prompts: Any) -> list[tuple[Any, Any, Any]]:
    """Queries [B, Q, L, D], keys and values [B, H, L, D] of every layer over prompts [B, L], prefilled separately."""
    import torch

    import kvviz

    caches = []
    for ids in prompts:
        caches.append(kvviz.SelectiveCache(model, "full", retain_queries=True))
        model(ids[None], past_key_values=caches[-1], use_cache=True, logits_to_keep=1)
    stacked = []
    for layers in zip(*(cache.selective_layers for cache in caches), strict=True):
        # private: a cache keeps the prompt's queries only for its own forks
        parts = [(torch.cat(layer._queries, dim=2), layer.store.keys, layer.store.values) for layer in layers]
        queries, keys, values = (torch.cat(part) for part in zip(*parts, strict=True))
        stacked.append((queries, keys, values))
        for layer in layers:  # as each layer's tensors are copied
            layer._queries.clear()
    return stacked


def filled(model: Any, label: str, prompts: list[tuple[Any, Any, Any]], batch: int, length: int, budget: int) -> Any:
    """An indexed cache with the first `batch` prompts and room for `length` tokens."""
    import kvviz

    cache = kvviz.SelectiveCache(model, contender(label, budget), STORES[label])
    for layer, selective, stored in zip(cache.selective_layers, cache.layers, prompts, strict=True):
        queries, keys, values = (tensor[:batch] for tensor in stored)
        layer.store.reserve(keys, values, length)
        layer.store.append(keys, values)
        layer.keep_queries(queries)
        selective.is_initialized = True
        layer.build()
    cache.wait()
    return cache


def decoded(model: Any, caches: dict[str, Any], fed: Any) -> dict[str, list[float]]:
    """Seconds per step by cache, the median of each turn; `fed` [B, N] are the tokens of all turns."""
    medians: dict[str, list[float]] = {name: [] for name in caches}
    for turn in fed.split(STEPS, dim=1):
        for name, cache in caches.items():
            times = []
            for token in turn.split(1, dim=1):
                started = time.perf_counter()
                model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
                times.append(time.perf_counter() - started)
            medians[name].append(statistics.median(times[1:]))  # at the first, caches hold another method's data
    return medians


def device_bytes(cache: Any) -> int:
    """Bytes of keys, values and metadata on the device."""
    ledger = cache.ledger()
    count: int = ledger.kept_bytes["device"] + ledger.metadata_bytes - ledger.host_metadata_bytes
    return count


def _row(name: str, batch: int, count: float, times: Sequence[float] = ()) -> dict[str, Any]:
    rates = sorted(batch / seconds for seconds in times)
    return {
        "method": name, "store": STORES[name], "batch": batch, "device_bytes": round(count),
        "tokens_per_s": statistics.median(rates) if rates else None, "range": [rates[0], rates[-1]] if rates else None,
    }  # fmt: skip
