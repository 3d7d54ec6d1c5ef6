"""Throughput: tokens per second of SmolLM2 by batch, methods in turns, up to a limit of the device's memory.

A batch has different texts of equal length: consecutive pieces of the prose. The model prefills each once, separately
and exactly, and all methods get the same keys and values. ClusterKV and PQCache keep them in host memory, as in their
papers, the others on the device. On a CPU both are the same memory: no bus is crossed, and the device's size is a limit
set here. After each batch, a method's bytes on the device are counted; a batch that would exceed the limit in
proportion is not run (a computed bound, not a failed allocation). This needs about 8 GB of memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from .inputs import model, prose

TOKENS, BUDGET, BATCHES, STEPS, TURNS = 2000, 256, (1, 2, 4, 8, 16), 5, 5
STORES = {
    "full": "device", "clusterkv": "host", "pqcache": "host", "quest": "device", "centroidkv": "device",
    "streaming_llm": "device",
}  # fmt: skip
LIMIT_BYTES = 2**30  # keys, values and metadata on the device; SmolLM2 in float32 has 46 kB per token


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


def prefilled(model: Any, prompts: Any) -> list[tuple[Any, Any]]:
    """Keys and values [B, H, L, D] of every layer over prompts [B, L], each prefilled separately and exactly."""
    import torch
    from transformers import DynamicCache

    caches = []
    for ids in prompts:
        caches.append(DynamicCache(config=model.config))
        model(ids[None], past_key_values=caches[-1], use_cache=True, logits_to_keep=1)
    return [
        (torch.cat([layer.keys for layer in layers]), torch.cat([layer.values for layer in layers]))
        for layers in zip(*(cache.layers for cache in caches), strict=True)
    ]


def filled(model: Any, name: str, prompts: list[tuple[Any, Any]], batch: int, length: int, budget: int) -> Any:
    """An indexed cache with the first `batch` prompts and room for `length` tokens."""
    import kvviz

    method = kvviz.methods.create(name, **({} if name == "full" else {"budget": budget}))
    assert not method.needs_queries  # only keys and values were kept
    cache = kvviz.SelectiveCache(model, method, STORES[name])
    for layer, selective, stored in zip(cache.selective_layers, cache.layers, prompts, strict=True):
        keys, values = (tensor[:batch] for tensor in stored)
        layer.store.reserve(keys, values, length)
        layer.store.append(keys, values)
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
