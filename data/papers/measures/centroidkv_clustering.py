"""CentroidKV's table 1: four ways to cluster keys, at the same number of centroids."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from measures import SEED, Rows, measure, texts

RATIO, CHUNK, ITERATIONS = 0.8, 256, 10  # of one round; of CSM; of k-means


@measure(lengths=[64, 128], count=2, layers=[1, 3], sinks=4, recent=8, steps=8, runs=1)
def centroidkv_clustering(
    lm: Any, lengths: tuple[int, ...] = (1024, 2048, 4096), count: int = 3, layers: tuple[int, ...] = (2, 14, 26),
    sinks: int = 16, recent: int = 64, steps: int = 32, runs: int = 2,
) -> Rows:  # fmt: skip
    """Per length, text, layer and clustering: centroids, seconds for all KV heads, and output error.

    One round merges the tokens between sinks and recent window; all four leave as many centroids as CSM leaves. The
    queries are those of the last `steps` positions, of the exact prompt. The seconds are a median of `runs` after one
    more, and include the merging.
    """
    import kvviz
    from kvviz import metrics

    rows = []
    for length in lengths:
        for text, ids in enumerate(texts(lm, length, count)):
            trace = kvviz.capture(lm, ids, layers=layers)
            for layer in layers:
                parts = (trace.queries[layer], trace.keys[layer], trace.values[layer])
                query, key, value = (torch.from_numpy(part.astype("float32")) for part in parts)  # [heads, L, D]
                prompt = length - steps
                middle = slice(sinks, prompt - recent)
                exact = _attention(query[:, prompt:], key[:, :prompt], value[:, :prompt])
                for name, cluster in clusterings(key[:, middle], value[:, middle]).items():
                    seconds, merged = timed(cluster, runs)
                    raw = (slice(0, sinks), slice(prompt - recent, prompt))
                    keys, values = (
                        torch.cat([each[:, raw[0]], new, each[:, raw[1]]], 1)
                        for each, new in ((key, merged[0]), (value, merged[1]))
                    )
                    degree = torch.nn.functional.pad(merged[2].float(), (sinks, recent), value=1)
                    output = _attention(query[:, prompt:], keys, values, degree.log())
                    rows.append({
                        "length": length, "text": text, "layer": layer, "clustering": name, "seconds": seconds,
                        "centroids": merged[2].shape[-1], "largest": int(merged[2].max()),
                        "output_error": float(metrics.output_error(output.numpy(), exact.numpy()).mean()),
                    })  # fmt: skip
    return rows


Parts = tuple[Tensor, Tensor, Tensor]  # keys [H, C, D], values [H, C, D], degree [H, C]


def clusterings(keys: Tensor, values: Tensor) -> dict[str, Callable[[], Parts]]:
    """One round of each clustering of keys [H, L, D]; all leave the same number of centroids."""
    from kvviz.clustering import chunked_soft_matching, kmeans
    from kvviz.clustering.soft_matching import count_links

    kept = max(1, round(RATIO * count_links(keys.shape[1], CHUNK)))
    left = keys.shape[1] - kept
    ones = torch.ones(keys.shape[:2], dtype=torch.int32)

    def matching(chunk_size: int | None) -> Parts:
        ratio = kept / count_links(keys.shape[1], chunk_size)
        merged = chunked_soft_matching(keys, values, ones, chunk_size=chunk_size, ratio=ratio)
        return merged.keys, merged.values, merged.degree

    def by_kmeans() -> Parts:
        clusters = kmeans(keys, left, metric="cosine", max_iter=ITERATIONS, seed=SEED)
        return means(keys, values, clusters.labels.long(), left)

    return {
        "Mesh": lambda: mesh(keys, values, kept), "K-means": by_kmeans,
        "BSM": partial(matching, None), "CSM": partial(matching, CHUNK),
    }  # fmt: skip


def mesh(keys: Tensor, values: Tensor, links: int) -> Parts:
    """Merge the `links` most similar pairs of all tokens of keys [H, L, D] that are not yet in one cluster.

    The paper gives no more of "Mesh" than its cost, n²d: the cosine of every token with every other one. Here each
    token is linked to its most similar one in the whole sequence, and links are taken in order of similarity; one
    within a cluster adds nothing. Every cluster has a link, so at least half of the tokens can be merged.
    """
    labels = []
    for head in normalize(keys, dim=-1):
        best = (head @ head.T).fill_diagonal_(-2).max(-1)
        partner, parent, left = best.indices.tolist(), list(range(len(head))), links
        for token in best.values.argsort(descending=True).tolist():
            one, other = _root(parent, token), _root(parent, partner[token])
            if left and one != other:
                parent[max(one, other)] = min(one, other)
                left -= 1
        assert not left, f"{left} of {links} pairs are missing"
        roots = torch.tensor([_root(parent, token) for token in range(len(head))])
        labels.append(roots.unique(return_inverse=True)[1])
    return means(keys, values, torch.stack(labels), keys.shape[1] - links)


def means(keys: Tensor, values: Tensor, labels: Tensor, count: int) -> Parts:
    """Means of keys and values [H, L, D] by label [H, L], and how many tokens have each of the `count` labels."""
    degree = torch.zeros(len(keys), count).scatter_add_(1, labels, torch.ones_like(labels, dtype=torch.float32))
    index = labels[..., None].expand_as(keys)
    sums = [torch.zeros(len(keys), count, keys.shape[-1]).scatter_add_(1, index, part) for part in (keys, values)]
    return *(part / degree.clamp_min(1)[..., None] for part in sums), degree


def timed(cluster: Callable[[], Parts], runs: int) -> tuple[float, Parts]:
    """Median seconds of `runs` calls after one more, and the result."""
    merged, times = cluster(), []
    for _ in range(runs):
        started = time.perf_counter()
        merged = cluster()
        times.append(time.perf_counter() - started)
    return statistics.median(times), merged


def _root(parent: list[int], token: int) -> int:
    while parent[token] != token:
        parent[token] = parent[parent[token]]
        token = parent[token]
    return token


def _attention(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None) -> Tensor:
    """Output [Q, T, D] of queries [Q, T, D]; `bias` [H, C] is added to the logits of each KV head."""
    if bias is not None:
        bias = bias.repeat_interleave(len(queries) // len(keys), 0)[:, None].expand(-1, queries.shape[1], -1)
    return scaled_dot_product_attention(queries, keys, values, attn_mask=bias, enable_gqa=True)
