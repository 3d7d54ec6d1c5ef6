"""k-means over keys: Lloyd's algorithm, every head on its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from kvviz_kernels import has_triton, kmeans_assign, kmeans_update, sort_by_label
from kvviz_kernels.kmeans.shared import METRICS
from torch import Tensor
from torch.nn import functional as F

from ..errors import InvalidInputError, UnknownNameError

__all__ = ["INITS", "METRICS", "Clusters", "initial_positions", "kmeans"]

INITS = ("random",)
CHECK_EVERY = 4  # iterations on a GPU between two looks at whether any head is still running: a look waits for it


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
    converged: Tensor  # [...] bool: the last assignment changed nothing, and centroids are the means it started from


@torch.no_grad()
def kmeans(
    keys: Tensor, n_clusters: int, *, metric: str = "cosine", max_iter: int = 20, init: str = "random", seed: int = 0,
    relaxation: float = 1.0,
) -> Clusters:  # fmt: skip
    """Clusters of `keys`, found by Lloyd's algorithm, until no label changes or for `max_iter` iterations.

    keys: [..., L, D], any float dtype, any device; computed in float32. Every head is clustered on its own: alone or in
    a batch, it gets the same clusters. Where initial keys are equal, and so their centroids, which of these a key joins
    is open: the last bit of a matrix product decides, and that depends on where its operands lie in memory.

    metric: how the nearest centroid is found: "cosine", "l2" or "ip" (largest inner product). A new centroid is the
    plain mean of its keys for all of them. A key of zeros has cosine 0 to every centroid and joins the first.
    init: "random", the keys at `initial_positions(L, n_clusters, seed)`.
    relaxation: in [1, 2). Each iteration moves a centroid by this many times the way to its keys' mean. 1 is Lloyd's
    algorithm, as in the papers. Above 1 (over-relaxation; 1.8 is a good choice) fewer iterations reach the same
    inertia, the sum of squared distances to the centroids: with L2 on keys of SmolLM2 at L = 8,192, 5 or 6 for 10 of
    Lloyd's at C = 102, and 4 or 5 at C = 400. Other labels are found than Lloyd's, and single iterations may raise the
    inertia. Once an iteration changes no label of a head, that head goes on with 1, so that it too ends at a fixed
    point; the centroids returned are means here too.

    Raises InvalidInputError for n_clusters outside 1 to L, max_iter below 1, relaxation outside [1, 2), keys that are
    not finite or not [..., L, D] floats; UnknownNameError for an unknown metric or init.

    Source: ClusterKV (arXiv 2412.03213, section III-B): cosine assignment, mean as the new centroid, random keys as
    initial ones, until labels stop changing. The cap on the iterations is that of its code (20); the other metrics are
    its ablation. Over-relaxation is in none of the papers; for this kind of algorithm: Salakhutdinov and Roweis,
    "Adaptive overrelaxed bound optimization methods" (ICML 2003).
    """
    _check(keys, n_clusters, metric, max_iter, init, relaxation)
    batch, length, width = keys.shape[:-2], keys.shape[-2], keys.shape[-1]
    rows = keys.reshape(math.prod(batch), length, width)  # [B, L, D]
    if not (rows.is_cuda and has_triton()):  # the fused kernels read any dtype; the plain ones convert at every call
        rows = rows.float()
    centroids, labels, n_iter, converged = _search(rows, n_clusters, metric, max_iter, relaxation, seed)
    order, sizes = sort_by_label(labels, n_clusters)
    return Clusters(
        centroids=centroids.view(*batch, n_clusters, width),
        labels=labels.view(*batch, length),
        sizes=sizes.view(*batch, n_clusters),
        offsets=F.pad(sizes.cumsum(-1), (1, 0)).view(*batch, n_clusters + 1),
        order=order.view(*batch, length),
        n_iter=n_iter.view(batch),
        converged=converged.view(batch),
    )


def _search(
    rows: Tensor, n_clusters: int, metric: str, max_iter: int, relaxation: float, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means [B, C, D], labels [B, L], iterations [B] and whether they converged [B], for rows [B, L, D].

    Between two looks at which heads still run, one that has converged is computed along: the same labels give the same
    sums, so nothing of it changes but n_iter, which counts only while it runs.
    """
    device = rows.device
    centroids = rows[:, initial_positions(rows.shape[1], n_clusters, seed).to(device)].float()
    means = centroids.clone()
    labels = torch.full(rows.shape[:2], -1, dtype=torch.int64, device=device)
    n_iter = torch.zeros(len(rows), dtype=torch.int64, device=device)
    running = torch.ones(len(rows), dtype=torch.bool, device=device)
    plain = torch.full_like(running, relaxation == 1)  # heads whose centroids are means
    active, active_rows = torch.arange(len(rows), device=device), rows
    for iteration in range(max_iter):
        found = kmeans_assign(active_rows, centroids[active], metric=metric)
        n_iter += running
        changed = (found != labels[active]).any(-1)
        running[active] &= changed | ~plain[active]
        plain[active] |= ~changed
        if _looks(iteration, device) and not running[active].all():
            still = running[active]
            active, found, active_rows = active[still], found[still], active_rows[still]
        if not len(active):
            break
        labels[active] = found
        sums, sizes = kmeans_update(active_rows, found, n_clusters)
        before = centroids[active]
        after = torch.where(sizes[..., None] > 0, sums / sizes[..., None], before)
        means[active] = after
        if relaxation != 1:
            # a product and a sum of their own: fused ones (torch.lerp) round by where an element lies in the batch
            after = torch.where(plain[active, None, None], after, after + (after - before) * (relaxation - 1))
        centroids[active] = after
    return means, labels, n_iter, ~running


def _looks(iteration: int, device: torch.device) -> bool:
    return device.type == "cpu" or iteration % CHECK_EVERY == CHECK_EVERY - 1


def initial_positions(length: int, n_clusters: int, seed: int) -> Tensor:
    """Distinct positions of the keys that are the initial centroids, int64 [C] on the CPU.

    The same for every head and device, so that a head's clusters depend on its keys and the seed alone.
    """
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:n_clusters]


def _check(keys: Tensor, n_clusters: int, metric: str, max_iter: int, init: str, relaxation: float) -> None:
    if keys.dim() < 2 or not keys.is_floating_point():
        raise InvalidInputError("kmeans keys", f"{keys.dtype} {list(keys.shape)}", "floats [..., L, D]")
    if not 1 <= n_clusters <= keys.shape[-2]:
        raise InvalidInputError("kmeans n_clusters", n_clusters, f"1 to {keys.shape[-2]}, the number of keys")
    if max_iter < 1:
        raise InvalidInputError("kmeans max_iter", max_iter, "at least 1")
    if not 1 <= relaxation < 2:
        raise InvalidInputError("kmeans relaxation", relaxation, "at least 1 and below 2")
    if metric not in METRICS:
        raise UnknownNameError("kmeans metric", metric, METRICS)
    if init not in INITS:
        raise UnknownNameError("kmeans init", init, INITS)
    if keys.numel() and not torch.stack(torch.aminmax(keys)).isfinite().all():  # NaN and infinity reach the extremes
        raise InvalidInputError("kmeans keys", "NaN or infinity among the keys", "finite keys")
