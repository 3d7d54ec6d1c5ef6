"""PQCache's times: one layer's work by length, time to the second token, time per token, caches, and T."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from measures import Rows, measure, texts

METHODS = ("full", "h2o", "snapkv", "pyramidkv", "sparq:pqcache", "infllm", "pqcache")
OFFLOADED = ("sparq:pqcache", "infllm", "pqcache")  # the paper's offloading methods
BLOCK = 128


@measure(lengths=(64, 96, 128, 160), layer=1, iterations=(1, 2), repeats=1)
def pqcache_layer_times(
    lm: Any, lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192), layer: int = 15,
    iterations: tuple[int, ...] = (3, 10, 30), repeats: int = 3,
) -> Rows:  # fmt: skip
    """Seconds of one layer's prefill, of offloading its keys and values, and of clustering its keys, by length.

    The fastest of `repeats` runs. Hidden states are random (their values cost no time), keys are real. Clustering runs
    on the host, for at most `limit` iterations. Offloading is the copy into host memory that a store makes; on a
    machine without a GPU no bus is crossed.
    """
    import torch

    import kvviz
    from kvviz.clustering.product_quantization import cluster_parts, product_quantize

    (ids,) = texts(lm, max(lengths), 1)
    trace = kvviz.capture(lm, ids, layers=[layer])
    keys, values = (torch.from_numpy(array[layer].astype("float32"))[None] for array in (trace.keys, trace.values))
    dtype = lm.model.dtype
    rows: Rows = []
    for tokens in lengths:
        k, v = keys[:, :, :tokens].contiguous(), values[:, :, :tokens].contiguous()
        stored = k.to(lm.device, dtype), v.to(lm.device, dtype)
        moved = 2 * stored[0].numel() * stored[0].element_size()
        known = {"tokens": tokens, "limit": None, "iterations": None, "bytes": None}
        computed_s = _fastest(_one_layer(lm, layer, tokens), repeats)
        offloaded_s = min(_offloaded_s(*stored) for _ in range(repeats + 1))
        rows.append({"work": "compute", **known, "seconds": computed_s})
        rows.append({"work": "offload", **known, "bytes": moved, "seconds": offloaded_s})
        for limit in iterations:
            fields = {"n_partitions": 2, "n_bits": 6, "max_iter": limit}
            made = int(cluster_parts(k[0], **fields).n_iter.max())
            seconds = _fastest(lambda k=k, fields=fields: product_quantize(k[0], **fields), repeats)
            rows.append({"work": "clustering", **known, "limit": limit, "iterations": made, "seconds": seconds})
    return rows


def _one_layer(lm: Any, layer: int, tokens: int) -> Callable[[], object]:
    """A function that runs one decoder layer on random hidden states."""
    import torch

    decoder = lm.model.model
    hidden = torch.randn(1, tokens, lm.model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(lm.device, lm.model.dtype)
    places = torch.arange(tokens, device=lm.device)[None]

    @torch.no_grad()
    def run() -> object:
        rotary = decoder.rotary_emb(hidden, places)
        output = decoder.layers[layer](hidden, position_ids=places, position_embeddings=rotary)
        if lm.device.type == "cuda":
            torch.cuda.synchronize()
        return output

    return run


def _offloaded_s(keys: Any, values: Any) -> float:
    """Seconds to offload all keys and values of a layer to host memory."""
    import torch

    from kvviz.offload import KVStore

    length = keys.shape[2]
    store = KVStore("host").layer(lambda prompt: prompt)
    store.reserve(keys, values, length)
    store.append(keys, values)
    if keys.is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    store.offload(1, torch.arange(0, device=keys.device)[None])
    store.wait()
    return time.perf_counter() - started


def _fastest(run: Callable[[], object], repeats: int) -> float:
    """The seconds of the fastest of `repeats` runs after a warm-up."""
    run()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@measure(lengths=(160,), rounds=1, steps=3, share=0.5)
def pqcache_latency(
    lm: Any, lengths: tuple[int, ...] = (512, 1024, 2048), rounds: int = 2, steps: int = 16, share: float = 0.2
) -> Rows:
    """TTFT, TT2T and TPOT of PQCache and its baselines by length; methods take turns within a round.

    The offloading methods keep keys and values in host memory, the others on the device.
    """

    rows = []
    for number in range(rounds):
        for tokens in lengths:
            (ids,) = texts(lm, tokens, 1)
            for name in METHODS:
                store = "host" if name in OFFLOADED else "device"
                budget = {} if name == "full" else {"budget": share}
                rows.append(
                    {"round": number, "tokens": tokens, "method": name} | _timed(lm, ids, name, steps, store, **budget)
                )
    return rows


@measure(gpu=True, lengths=(160,), rounds=1, steps=3, share=0.5)
def pqcache_latency_gpu(
    lm: Any, lengths: tuple[int, ...] = (2048, 4096, 8000), rounds: int = 5, steps: int = 64, share: float = 0.2
) -> Rows:
    """As `pqcache_latency`, on a GPU."""
    return pqcache_latency(lm, lengths, rounds, steps, share)


@measure(gpu=True, lengths=(64, 96, 128, 160), layer=1, iterations=(1, 2), repeats=1)
def pqcache_layer_times_gpu(
    lm: Any, lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192), layer: int = 15,
    iterations: tuple[int, ...] = (3, 10, 30), repeats: int = 5,
) -> Rows:  # fmt: skip
    """As `pqcache_layer_times`: a layer on the GPU, clustering on the host, offloading over the bus between them."""
    return pqcache_layer_times(lm, lengths, layer, iterations, repeats)


@measure(tokens=200, rounds=1, steps=3, capacities=(1,))
def pqcache_cache_sizes(
    lm: Any, tokens: int = 2048, rounds: int = 2, steps: int = 16, share: float = 0.2,
    capacities: tuple[int, ...] = (2, 4, 8),
) -> Rows:  # fmt: skip
    """TPOT and bytes fetched per step of PQCache in host memory: no cache, block caches, and the last step's tokens.

    `capacities` are blocks of 128 tokens; `waiting_bytes` are those that a step waits for, without block fills.
    """
    from kvviz.offload import BlockCache, KVStore, StepCache

    (ids,) = texts(lm, tokens, 1)
    caches: dict[str, Any] = {"no cache": StepCache(0)}
    caches |= {
        f"{blocks * BLOCK:,} tokens": BlockCache(blocks_a_step=blocks, capacity_tokens=blocks * BLOCK)
        for blocks in capacities
    }
    caches["last step's tokens"] = StepCache(1)
    rows = []
    for number in range(rounds):
        for label, cache in caches.items():
            rows.append({"round": number, "cache": label} | _timed(
                lm, ids, "pqcache", steps, KVStore("host", cache), budget=share
            ))  # fmt: skip
    return rows


@measure(tokens=128, rounds=1, steps=3, iterations=(1, 2))
def pqcache_tt2t_by_iterations(
    lm: Any, tokens: int = 2048, rounds: int = 2, steps: int = 4, share: float = 0.1,
    iterations: tuple[int, ...] = (1, 3, 10, 30, 100),
) -> Rows:  # fmt: skip
    """TT2T and seconds of building by the most iterations of k-means, keys in host memory, clustered on the host."""
    (ids,) = texts(lm, tokens, 1)
    fields = {"budget": share, "cluster_on": "host"}
    return [
        {"round": number, "iterations": count} | _timed(lm, ids, "pqcache", steps, "host", max_iter=count, **fields)
        for number in range(rounds)
        for count in iterations
    ]


def _timed(lm: Any, ids: Any, method: str, steps: int, store: Any, **fields: Any) -> dict[str, float | None]:
    """Times of a generation, and the bytes that it moved per step; None for what a run does not have."""
    import kvviz

    name, _, preset = method.partition(":")
    chosen = kvviz.methods.create(name, **({"preset": preset} if preset else {}), **fields)
    out = kvviz.generate(lm, ids, chosen, max_new_tokens=steps + 1, store=store)
    taken = max(len(out.token_ids) - 1, 1)
    timings, ledger = out.timings, out.ledger
    measured = {
        "ttft_s": timings.ttft_s, "tt2t_s": timings.tt2t_s, "tpot_s": timings.tpot_s, "build_s": timings.build_s,
        "hit_rate": float(ledger.hit_rate), "moved_bytes": ledger.moved_bytes / taken,
        "waiting_bytes": (ledger.moved_bytes - ledger.filled_bytes) / taken,
        "prefetched_bytes": ledger.prefetched_bytes / taken,
    }  # fmt: skip
    return {name: value if math.isfinite(value) else None for name, value in measured.items()}
