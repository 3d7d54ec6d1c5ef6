"""Bandwidth of fetching whole clusters from host memory into the device's arena, compared with plain copies.

The clusters are from k-means on real keys of SmolLM2 and, for longer contexts, random sets of tokens. Nothing is on the
device yet, so every token is fetched. Layers take turns, each with its own rows and pool. Before each call an array is
written, as a step reads weights between two layers: as large as a layer of SmolLM2 or, for the random clusters, larger
than the processor's caches, as in a larger model. Rows and pools are thus never in the caches. The plain copies move as
many bytes from contiguous rows to the same pool: "copy" is torch's, with as many threads as the gather; "memcpy" is
NumPy's, that is the C library's, with one thread. "load" is the gather alone; "fetch" is all the work of a step,
look-ups included. Shares are ratios of medians.
"""

from __future__ import annotations

import itertools
import statistics
import time
from typing import Any

from .inputs import PROMPT_TOKENS, Layer, model, real_trace

LAYER, TOKENS_PER_CLUSTER, BUDGETS, TURNS, SEED = 15, 80, (512, 1024, 2048), 6, 0
HEADS, DIM, TOKENS, LAYERS = 8, 64, 32_768, 4  # of scattered clusters
LARGE_LAYER_BYTES = 128 * 2**20


def run() -> dict[str, Any]:
    """Bytes per second of gathers and copies by layer and budget, and their ratios, in float32."""
    import torch

    from kvviz.clustering import kmeans

    layer = Layer.of(real_trace(PROMPT_TOKENS, (LAYER,)), LAYER)
    real = kmeans(layer.keys, PROMPT_TOKENS // TOKENS_PER_CLUSTER).labels
    generator = torch.Generator().manual_seed(SEED)
    scattered = torch.randint(TOKENS // TOKENS_PER_CLUSTER, (1, HEADS, TOKENS), generator=generator)
    rows = [
        {
            "keys": name,
            "heads": labels.shape[1],
            "tokens": labels.shape[2],
            "bytes_between": weights,
            **_measured(labels, dim, budget, layers, weights, generator),
        }
        for name, labels, dim, layers, weights in (
            ("SmolLM2's", real, layer.keys.shape[-1], layer.context.n_layers, _layer_bytes()),
            ("scattered clusters", scattered, DIM, LAYERS, LARGE_LAYER_BYTES),
        )
        for budget in BUDGETS
    ]
    return {"tokens_per_cluster": TOKENS_PER_CLUSTER, "rows": rows}


def _layer_bytes() -> int:
    """Bytes of the weights of one layer of SmolLM2."""
    weights = model().model.model.layers[LAYER].parameters()
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _measured(labels: Any, dim: int, budget: int, layers: int, between: int, generator: Any) -> dict[str, float]:
    import numpy as np
    import torch

    from kvviz.offload import KVStore, StepCache
    from kvviz.offload.host import HostRows
    from kvviz.offload.space import Space, free_memory

    _, heads, tokens = labels.shape
    choices = [_whole_clusters(labels, budget, generator) for _ in range(TURNS)]
    one, every = torch.zeros(1, heads, 1, dim), torch.arange(heads * budget)
    flushed = torch.zeros(between // 4)

    def timed(name: str, work: Any) -> None:
        flushed.add_(1)
        started = time.perf_counter()
        work()
        times[name].append(time.perf_counter() - started)

    times: dict[str, list[float]] = {"fetch": [], "load": [], "copy": [], "memcpy": []}
    stores = [KVStore("host", StepCache(0)).layer(lambda length: budget) for _ in range(layers)]
    for store in stores:
        store.append(torch.ones(1, heads, tokens, dim), torch.ones(1, heads, tokens, dim))
        store.offload(0)
        store.wait()
    for indices, store in itertools.product(choices, stores):
        store.append(one, one)  # the next step, which forgets what the last one fetched
        misses = store.misses
        timed("fetch", lambda store=store, indices=indices: store.fetch(indices, padded=False))
        assert store.misses - misses == indices.numel()
    del stores, store
    space = Space("host", None, free_memory)
    kept = [HostRows(heads, tokens, 2 * dim, torch.float32, space, pinned=False) for _ in range(layers)]
    pools = [torch.zeros(heads * budget, 2 * dim) for _ in range(layers)]
    for each in kept:
        each.rows.fill_(1)
    for indices in choices:
        places = (indices[0] + torch.arange(heads)[:, None] * tokens).flatten()
        start = int(torch.randint(len(kept[0].rows) - len(every), (1,), generator=generator))
        for each, pool in zip(kept, pools, strict=True):
            timed("load", lambda each=each, pool=pool, places=places: each.load(places, pool, every, ascending=True))
        runs = [(each.rows[start : start + len(every)], pool) for each, pool in zip(kept, pools, strict=True)]
        for run_of_rows, pool in runs:
            timed("copy", lambda pool=pool, run_of_rows=run_of_rows: pool.copy_(run_of_rows))
        for run_of_rows, pool in runs:
            source, target = run_of_rows.numpy(), pool.numpy()
            timed("memcpy", lambda source=source, target=target: np.copyto(target, source))
    pool = pools[0]
    seconds = {name: statistics.median(values[layers:]) for name, values in times.items()}
    count = pool.numel() * pool.element_size()
    return {
        "budget": budget, "bytes": count,
        **{f"{name}_bytes_per_s": count / value for name, value in seconds.items()},
        "load_share_of_memcpy": seconds["memcpy"] / seconds["load"],
        "load_share_of_copy": seconds["copy"] / seconds["load"],
        "fetch_share_of_copy": seconds["copy"] / seconds["fetch"],
    }  # fmt: skip


def _whole_clusters(labels: Any, budget: int, generator: Any) -> Any:
    """Positions [1, H, budget], ascending, of randomly chosen clusters; the last one is trimmed."""
    import torch

    rank = torch.randperm(int(labels.amax()) + 1, generator=generator)[labels]
    return rank.argsort(dim=-1, stable=True)[..., :budget].sort().values
