"""k-means over keys: Lloyd's algorithm, every head on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kvviz_kernels import kmeans_assign, kmeans_update, sort_by_label
from kvviz_kernels.kmeans.shared import METRICS
from torch import Tensor
from torch.nn import functional as F

from ..errors import InvalidInputError, UnknownNameError

__all__ = ["INITS", "METRICS", "Clusters", "initial_positions", "kmeans"]

INITS = ("random",)


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of keys: C of them for each head, over L positions.

    `order[..., offsets[..., c] : offsets[..., c + 1]]` are the positions in cluster c. A centroid is the mean of its
    keys, also where `max_iter` ended the search; an empty cluster keeps the last centroid it had.
    """

    centroids: Tensor  # [..., C, D] float32
    labels: Tensor  # [..., L] int64: the cluster of each position
    sizes: Tensor  # [..., C] int64: positions in each cluster
    offsets: Tensor  # [..., C + 1] int64: prefix sum of sizes, from 0 to L
    order: Tensor  # [..., L] int64: positions sorted by label, ascending inside a label
    n_iter: Tensor  # [...] int64: assignments made, the one that changed nothing included
    converged: Tensor  # [...] bool: the last assignment changed nothing


@torch.no_grad()
def kmeans(
    keys: Tensor, n_clusters: int, *, metric: str = "cosine", max_iter: int = 20, init: str = "random", seed: int = 0
) -> Clusters:
    """Clusters of `keys`, found by Lloyd's algorithm, until no label changes or for `max_iter` iterations.

    keys: [..., L, D], any float dtype, any device; computed in float32. Every head is clustered on its own: alone or in
    a batch, it gets the same clusters. Where initial keys are equal, and so their centroids, which of these a key joins
    is open: the last bit of a matrix product decides, and that depends on where its operands lie in memory.

    metric: how the nearest centroid is found: "cosine", "l2" or "ip" (largest inner product). A new centroid is the
    plain mean of its keys for all of them. A key of zeros has cosine 0 to every centroid and joins the first.
    init: "random", the keys at `initial_positions(L, n_clusters, seed)`.

    Raises InvalidInputError for n_clusters outside 1 to L, max_iter below 1, keys that are not finite or not
    [..., L, D] floats; UnknownNameError for an unknown metric or init.

    Source: ClusterKV (arXiv 2412.03213, section III-B): cosine assignment, mean as the new centroid, random keys as
    initial ones, until labels stop changing. The cap on the iterations is that of its code (20); the other metrics are
    its ablation.
    """
    _check(keys, n_clusters, metric, max_iter, init)
    batch, length, width = keys.shape[:-2], keys.shape[-2], keys.shape[-1]
    rows = keys.float().reshape(math.prod(batch), length, width)  # [B, L, D]
    positions = initial_positions(length, n_clusters, seed).to(keys.device)
    centroids = rows[:, positions]  # [B, C, D]
    labels = torch.full(rows.shape[:2], -1, dtype=torch.int64, device=keys.device)
    n_iter = torch.zeros(len(rows), dtype=torch.int64, device=keys.device)
    active, active_rows = torch.arange(len(rows), device=keys.device), rows  # heads whose labels still change
    for _ in range(max_iter):
        found = kmeans_assign(active_rows, centroids[active], metric=metric)
        n_iter[active] += 1
        changed = (found != labels[active]).any(-1)
        if not changed.all():
            active, found, active_rows = active[changed], found[changed], active_rows[changed]
        if not len(active):
            break
        labels[active] = found
        sums, sizes = kmeans_update(active_rows, found, n_clusters)
        centroids[active] = torch.where(sizes[..., None] > 0, sums / sizes[..., None], centroids[active])
    order, sizes = sort_by_label(labels, n_clusters)
    converged = torch.ones(len(rows), dtype=torch.bool, device=keys.device).index_fill_(0, active, False)
    return Clusters(
        centroids=centroids.view(*batch, n_clusters, width),
        labels=labels.view(*batch, length),
        sizes=sizes.view(*batch, n_clusters),
        offsets=F.pad(sizes.cumsum(-1), (1, 0)).view(*batch, n_clusters + 1),
        order=order.view(*batch, length),
        n_iter=n_iter.view(batch),
        converged=converged.view(batch),
    )


def initial_positions(length: int, n_clusters: int, seed: int) -> Tensor:
    """Distinct positions of the keys that are the initial centroids, int64 [C] on the CPU.

    The same for every head and device, so that a head's clusters depend on its keys and the seed alone.
    """
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:n_clusters]


def _check(keys: Tensor, n_clusters: int, metric: str, max_iter: int, init: str) -> None:
    if keys.dim() < 2 or not keys.is_floating_point():
        raise InvalidInputError("kmeans keys", f"{keys.dtype} {list(keys.shape)}", "floats [..., L, D]")
    if not 1 <= n_clusters <= keys.shape[-2]:
        raise InvalidInputError("kmeans n_clusters", n_clusters, f"1 to {keys.shape[-2]}, the number of keys")
    if max_iter < 1:
        raise InvalidInputError("kmeans max_iter", max_iter, "at least 1")
    if metric not in METRICS:
        raise UnknownNameError("kmeans metric", metric, METRICS)
    if init not in INITS:
        raise UnknownNameError("kmeans init", init, INITS)
    if keys.numel() and not torch.stack(torch.aminmax(keys)).isfinite().all():  # NaN and infinity reach the extremes
        raise InvalidInputError("kmeans keys", "NaN or infinity among the keys", "finite keys")
