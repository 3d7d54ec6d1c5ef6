"""Building an index of one layer's keys: CTkvr's query centroids, k-means, and faiss's IVF and HNSW, by length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from measures import SEED, Rows, measure, texts

METHODS = ("retrieval_attention", "pqcache")  # timed as a whole
PROBES, EDGES = 4, 16  # C' of CTkvr; links per key and level of HNSW
Found = tuple[Tensor, float]  # the positions found [Q, T, B], and the share of the keys that were scored


@measure(tokens=128, count=2, lengths=(64, 128), budget=8, steps=4, runs=1, iterations=5)
def ctkvr_index_building(
    lm: Any, tokens: int = 2048, count: int = 3, lengths: tuple[int, ...] = (256, 512, 1024, 2048), budget: int = 64,
    steps: int = 32, runs: int = 2, iterations: int = 300,
) -> Rows:  # fmt: skip
    """Per text, length and index: seconds to build it for all KV heads of a middle layer, and its recall.

    Each index has L/16 cells or centroids. `recall` is the share of the `budget` keys with the largest q·k that a
    search returns as its best `budget`, over the last `steps` queries of each head; the keys of these steps are not
    indexed. `scored` is the share of the keys whose exact product the search computes (for HNSW what faiss counts).
    "ctkvr" are the query centroids, "clusterkv" is kvviz's k-means; the builds of METHODS are timed only.
    """
    import faiss

    import kvviz
    from kvviz.generation.replaying import trace_context

    faiss.omp_set_num_threads(torch.get_num_threads())
    layer, rows = lm.geometry.n_layers // 2, []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids, layers=[layer])
        all_queries, all_keys, all_values = (
            torch.from_numpy(part[layer].astype("float32")) for part in (trace.queries, trace.keys, trace.values)
        )
        for length in lengths:
            queries, keys = all_queries[:, :length], all_keys[:, : length - steps].contiguous()
            by_head = queries[:, -steps:].unflatten(0, (len(keys), -1))  # [H, G, T, D]
            best = (by_head @ keys[:, None].mT).topk(budget, -1).indices
            prompt = queries[:, : length - steps].contiguous()
            for name, (build, search) in _indexes(prompt, keys, by_head, budget, iterations).items():
                seconds, index = _timed(build, runs)
                found, scored = search(index)
                shared = (found[..., None] == best[..., None, :]).any(-1).sum(-1) / budget
                rows.append({
                    "text": text, "length": length, "index": name, "seconds": seconds,
                    "recall": float(shared.mean()), "scored": scored,
                })  # fmt: skip
            inputs = prompt[None], keys[None], all_values[None, :, : length - steps].contiguous()
            for name in METHODS:
                method, context = kvviz.methods.create(name, budget=0.5), trace_context(trace, layer)
                seconds, _ = _timed(
                    lambda method=method, context=context, inputs=inputs: method.build(context, *inputs), runs
                )
                rows.append({"text": text, "length": length, "index": name, "seconds": seconds,
                             "recall": None, "scored": None})  # fmt: skip
    return rows


def _timed(build: Callable[[], Any], runs: int) -> tuple[float, Any]:
    """The median of `runs` times, after one that does not count, and the index."""
    times, index = [], build()
    for _ in range(runs):
        started = time.perf_counter()
        index = build()
        times.append(time.perf_counter() - started)
    return statistics.median(times), index


def _indexes(
    prompt: Tensor, keys: Tensor, queries: Tensor, budget: int, iterations: int
) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Found]]]:
    """How each index is built over keys [H, L, D], and how it is searched with queries [H, G, T, D]."""
    import faiss

    from kvviz.clustering import kmeans, query_centroids

    length, dim = keys.shape[1:]
    cells, list_length = max(length // 16, 1), min(int(2.5 * budget), length)
    arrays = [np.ascontiguousarray(head.numpy()) for head in keys]

    def centroids() -> Any:
        return query_centroids(prompt, keys, n_centroids=cells, list_length=list_length)

    def ivf(array: Any) -> Any:
        index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
        index.own_fields, index.cp.seed, index.cp.min_points_per_centroid = False, SEED, 1
        index.train(array)
        index.add(array)
        return index

    def hnsw(array: Any) -> Any:
        index = faiss.IndexHNSWFlat(dim, EDGES, faiss.METRIC_INNER_PRODUCT)
        index.add(array)
        return index

    def faiss_kmeans(array: Any) -> Any:
        found = faiss.Kmeans(dim, cells, niter=iterations, seed=SEED, min_points_per_centroid=1)
        found.train(array)
        return _grouped(found.index.search(array, 1)[1][:, 0], found.centroids)

    def key_clusters() -> Any:
        clusters = kmeans(keys, cells, metric="cosine", seed=SEED)
        return [
            _grouped(label.numpy(), centroid.numpy())
            for label, centroid in zip(clusters.labels, clusters.centroids, strict=True)
        ]

    return {
        "ctkvr": (centroids, lambda index: _search_lists(index, keys, queries, budget)),
        "faiss IVF": (lambda: [ivf(each) for each in arrays], lambda index: _search_ivf(index, queries, budget)),
        "faiss HNSW": (lambda: [hnsw(each) for each in arrays], lambda index: _search_hnsw(index, queries, budget)),
        f"faiss k-means, {iterations} iterations": (
            lambda: [faiss_kmeans(each) for each in arrays], lambda index: _search_cells(index, keys, queries, budget),
        ),
        "clusterkv": (key_clusters, lambda index: _search_cells(index, keys, queries, budget)),
    }  # fmt: skip


def _grouped(labels: Any, centroids: Any) -> tuple[Any, Any]:
    return np.asarray(labels), np.asarray(centroids, np.float32)


def _best(scores: Tensor, listed: Tensor, budget: int) -> Found:
    """The best tokens among those listed [H, G, T, L], and the share that was listed."""
    return scores.masked_fill(~listed, -torch.inf).topk(budget, -1).indices, float(listed.float().mean())


def _search_lists(index: Any, keys: Tensor, queries: Tensor, budget: int) -> Found:
    """The lists of the C' centroids with the largest cosine, maximum over the group; all of them are scored."""
    from torch.nn.functional import normalize

    centroids = index.centroids.unflatten(0, (len(keys), -1))  # [H, G, C, D]
    cosines = (normalize(queries, dim=-1) @ normalize(centroids, dim=-1).mT).amax(1)  # [H, T, C]
    probed = cosines.topk(min(PROBES, cosines.shape[-1]), -1).indices
    tokens = index.lists.long().gather(1, probed.flatten(1)[..., None].expand(-1, -1, index.lists.shape[-1]))
    listed = torch.zeros(*probed.shape[:2], keys.shape[1], dtype=torch.bool)
    listed.scatter_(-1, tokens.unflatten(1, probed.shape[1:]).flatten(2), True)
    return _best(queries @ keys[:, None].mT, listed[:, None].expand(-1, queries.shape[1], -1, -1), budget)


def _search_ivf(indexes: list[Any], queries: Tensor, budget: int) -> Found:
    """A sixteenth of the cells, by inner product; their keys are scored."""
    import faiss

    found, stats = [], faiss.cvar.indexIVF_stats
    stats.reset()
    for index, of_head in zip(indexes, queries, strict=True):
        index.nprobe = max(index.nlist // 16, PROBES)
        found.append(torch.from_numpy(index.search(of_head.flatten(0, 1).numpy(), budget)[1]))
    searches = len(indexes) * queries.shape[1] * queries.shape[2]
    share = stats.ndis / searches / indexes[0].ntotal
    return torch.stack(found).unflatten(1, queries.shape[1:3]), float(share)


def _search_hnsw(indexes: list[Any], queries: Tensor, budget: int) -> Found:
    """As many candidates as the budget; faiss counts the products."""
    import faiss

    found, stats = [], faiss.cvar.hnsw_stats
    stats.reset()
    for index, of_head in zip(indexes, queries, strict=True):
        settings = faiss.SearchParametersHNSW(efSearch=budget)
        found.append(torch.from_numpy(index.search(of_head.flatten(0, 1).numpy(), budget, params=settings)[1]))
    searches = len(indexes) * queries.shape[1] * queries.shape[2]
    return torch.stack(found).unflatten(1, queries.shape[1:3]), stats.ndis / searches / indexes[0].ntotal


def _search_cells(indexes: list[Any], keys: Tensor, queries: Tensor, budget: int) -> Found:
    """A sixteenth of the clusters, by inner product with the centroid; their keys are scored."""
    listed = torch.zeros(*queries.shape[:3], keys.shape[1], dtype=torch.bool)
    for head, (labels, centroids) in enumerate(indexes):
        count = max(len(centroids) // 16, PROBES)
        probed = (queries[head] @ torch.from_numpy(centroids).mT).topk(min(count, len(centroids)), -1).indices
        chosen = torch.zeros(*queries.shape[1:3], len(centroids), dtype=torch.bool).scatter_(-1, probed, True)
        listed[head] = chosen[..., torch.from_numpy(labels).long()]
    return _best(queries @ keys[:, None].mT, listed, budget)
