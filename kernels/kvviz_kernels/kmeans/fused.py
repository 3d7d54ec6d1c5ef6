"""k-means steps in Triton: no matrix of scores in memory, no atomics."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .shared import linear_scores, sort_by_label

BLOCK_KEYS, BLOCK_CLUSTERS = 64, 64


def _assign(
    keys: Any, weights: Any, bias: Any, labels: Any, length: Any, n_clusters: Any,
    D: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program a block of keys of one head; walks all centroids, keeping the best so far."""
    row = tl.program_id(1).to(tl.int64)
    tokens = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    dims = tl.arange(0, BLOCK_D)
    inside = (tokens[:, None] < length) & (dims[None, :] < D)
    block = tl.load(keys + (row * length + tokens[:, None]) * D + dims[None, :], mask=inside, other=0.0).to(tl.float32)
    best = tl.full([BLOCK_L], float("-inf"), tl.float32)
    label = tl.zeros([BLOCK_L], tl.int32)
    for start in range(0, n_clusters, BLOCK_C):
        clusters = start + tl.arange(0, BLOCK_C)
        known = clusters < n_clusters
        place = (row * n_clusters + clusters[None, :]) * D + dims[:, None]
        weight = tl.load(weights + place, mask=known[None, :] & (dims[:, None] < D), other=0.0)
        scores = tl.dot(block, weight, input_precision="ieee")
        if HAS_BIAS:
            scores += tl.load(bias + row * n_clusters + clusters, mask=known, other=0.0)[None, :]
        scores = tl.where(known[None, :], scores, float("-inf"))
        top = tl.max(scores, 1)
        label = tl.where(top > best, tl.argmax(scores, 1, tie_break_left=True) + start, label)
        best = tl.maximum(best, top)
    tl.store(labels + row * length + tokens, label.to(tl.int64), mask=tokens < length)


def _sum_clusters(
    keys: Any, order: Any, bounds: Any, sums: Any, D: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr
) -> None:
    """One program a cluster; adds up its keys, found through the positions sorted by label."""
    cluster = tl.program_id(0).to(tl.int64)
    first, end = tl.load(bounds + cluster), tl.load(bounds + cluster + 1)
    dims = tl.arange(0, BLOCK_D)
    total = tl.zeros([BLOCK_D], tl.float32)
    for start in range(first, end, BLOCK_L):
        slots = start + tl.arange(0, BLOCK_L)
        tokens = tl.load(order + slots, mask=slots < end, other=0)
        inside = (slots[:, None] < end) & (dims[None, :] < D)
        total += tl.sum(tl.load(keys + tokens[:, None] * D + dims[None, :], mask=inside, other=0.0).to(tl.float32), 0)
    tl.store(sums + cluster * D + dims, total, mask=dims < D)


# called rather than written as decorators, so that type checkers without Triton still see the functions
_assign_kernel = triton.jit(_assign)
_sum_clusters_kernel = triton.jit(_sum_clusters)


def kmeans_assign(keys: Tensor, centroids: Tensor, *, metric: str = "cosine") -> Tensor:
    """Label of each key's nearest centroid; see `kvviz_kernels.kmeans_assign`."""
    length, width = keys.shape[-2:]
    n_clusters = centroids.shape[-2]
    weights, bias = linear_scores(centroids, metric)
    rows = keys.reshape(-1, length, width).contiguous()  # [B, L, D]
    labels = torch.empty(keys.shape[:-1], dtype=torch.int64, device=keys.device)
    _assign_kernel[(triton.cdiv(length, BLOCK_KEYS), len(rows))](
        rows, weights.contiguous(), weights if bias is None else bias.contiguous(), labels, length, n_clusters,
        D=width, HAS_BIAS=bias is not None, BLOCK_L=BLOCK_KEYS, BLOCK_C=BLOCK_CLUSTERS, BLOCK_D=_block_width(width),
    )  # fmt: skip
    return labels


def kmeans_update(keys: Tensor, labels: Tensor, n_clusters: int) -> tuple[Tensor, Tensor]:
    """Sum of each cluster's keys and its number of keys; see `kvviz_kernels.kmeans_update`."""
    length, width = keys.shape[-2:]
    order, sizes = sort_by_label(labels, n_clusters)
    order = order.reshape(-1, length)
    order = order + torch.arange(0, order.numel(), length, device=keys.device)[:, None]  # into [B * L]
    bounds = torch.nn.functional.pad(sizes.flatten().cumsum(0), (1, 0))  # [B * C + 1]
    sums = torch.empty(*sizes.shape, width, dtype=torch.float32, device=keys.device)
    rows = keys.reshape(-1, width).contiguous()  # [B * L, D]
    _sum_clusters_kernel[(sizes.numel(),)](
        rows, order, bounds, sums, D=width, BLOCK_L=BLOCK_KEYS, BLOCK_D=_block_width(width)
    )
    return sums, sizes


def _block_width(width: int) -> int:
    return max(16, int(triton.next_power_of_2(width)))  # tl.dot needs at least 16
