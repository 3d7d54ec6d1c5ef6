"""Tokens a second of SmolLM2 by batch, methods in turns, until what the device may hold is full.

A batch is of different texts of equal length: pieces of the prose, one behind the other. The model prefills each once,
alone and exactly, and every method gets the same keys and values. ClusterKV and PQCache keep them in host memory, as
their papers do, the others on the device. On a CPU both are the same memory: no bus is crossed, and the device's end is
a limit set here. After each batch the bytes that a method has on the device are counted, and a batch that would exceed
the limit in proportion is not run: a computed bound, no failed allocation. The whole takes about 8 GB of memory.
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
LIMIT_BYTES = 2**30  # keys, values and metadata on the device; SmolLM2 in float32 has 46 kB a token


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
    """A row a method and batch, of texts [B, L] of which `tokens` are the prompt and the rest is fed step by step.

    A method's row without a number is that of the first batch that would exceed the limit, its last.
    """
    import torch

    from kvviz.cache.attachment import attached

    rows: list[dict[str, Any]] = []
    held: dict[str, float] = dict.fromkeys(STORES, 0.0)  # bytes of a text on the device, as counted at the last batch
    with torch.no_grad(), attached(model):
        prompts = prefilled(model, texts[:, :tokens])
        for batch in batches:
            ended = {name: batch * each for name, each in held.items() if batch * each > limit_bytes}
            for name, count in ended.items():
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
    """Keys and values [B, H, L, D] of every layer over prompts [B, L], each attended alone and exactly."""
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
    """A cache with the first `batch` prompts, indexed, and room for `length` tokens."""
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
    """Seconds of a step by cache, the median of each turn; `fed` [B, N] are the tokens of all turns."""
    medians: dict[str, list[float]] = {name: [] for name in caches}
    for turn in fed.split(STEPS, dim=1):
        for name, cache in caches.items():
            times = []
            for token in turn.split(1, dim=1):
                started = time.perf_counter()
                model(token, past_key_values=cache, use_cache=True, logits_to_keep=1)
                times.append(time.perf_counter() - started)
            medians[name].append(statistics.median(times[1:]))  # the first finds another method's data in the caches
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
