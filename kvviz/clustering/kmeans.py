"""k-means over keys: Lloyd's algorithm, separately for each head."""

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
CHECK_EVERY = 4  # iterations on a GPU between checks for heads that have converged; a check waits for the GPU


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of keys: C clusters per head, over L positions.

    `order[..., offsets[..., c] : offsets[..., c + 1]]` are the positions in cluster c. A centroid is the mean of its
    keys, even if `max_iter` ended the search; an empty cluster keeps its last centroid.
    """

    centroids: Tensor  # [..., C, D] float32
    labels: Tensor  # [..., L] int64: the cluster of each position
    sizes: Tensor  # [..., C] int64: positions in each cluster
    offsets: Tensor  # [..., C + 1] int64: prefix sum of sizes, from 0 to L
    order: Tensor  # [..., L] int64: positions sorted by label, ascending within a label
    n_iter: Tensor  # [...] int64: number of assignments, including the last one, which may change nothing
    converged: Tensor  # [...] bool: the last assignment changed no label, and used these means as centroids


@torch.no_grad()
def kmeans(
    keys: Tensor, n_clusters: int, *, metric: str = "cosine", max_iter: int = 20, init: str = "random", seed: int = 0,
    relaxation: float = 1.0,
) -> Clusters:  # fmt: skip
    """Clusters of `keys` by Lloyd's algorithm, until no label changes or for `max_iter` iterations.

    keys: [..., L, D], any float dtype, any device; computed in float32. Each head is clustered separately: alone or in
    a batch, it gets the same clusters. If initial keys, and so their centroids, are equal, it is undefined which of
    them a key joins: the last bit of a matrix product decides, and depends on the place of the operands in memory.

    metric: the similarity to the centroids: "cosine", "l2" or "ip" (largest inner product). The new centroid is the
    plain mean of its keys for all metrics. A key of zeros has cosine 0 to all centroids and joins the first.
    init: "random", the keys at `initial_positions(L, n_clusters, seed)`.
    relaxation: in [1, 2), the step of a centroid as a multiple of its way to its keys' mean. 1 is Lloyd's algorithm, as
    in the papers. Above 1 (over-relaxation; 1.8 is a good choice), fewer iterations reach the same inertia, the sum of
    squared distances to the centroids: with L2 on keys of SmolLM2 at L = 8,192, 5 or 6 instead of 10 at C = 102, and 4
    or 5 at C = 400. The labels differ from Lloyd's, and single iterations may raise the inertia. Once an iteration
    changes no label of a head, that head goes on with 1, so that it too ends at a fixed point. The centroids returned
    are means in any case.

    Raises InvalidInputError for n_clusters outside 1 to L, max_iter below 1, relaxation outside [1, 2), keys that are
    not finite or not [..., L, D] floats; UnknownNameError for an unknown metric or init.

    Source: ClusterKV (arXiv 2412.03213, section III-B): cosine assignment, mean as the new centroid, random initial
    keys, until the labels stop changing. The maximum of 20 iterations is from its code; the other metrics are from its
    ablation. Over-relaxation is in none of the papers; for such algorithms see Salakhutdinov and Roweis, "Adaptive
    overrelaxed bound optimization methods" (ICML 2003).
    """
    _check(keys, n_clusters, metric, max_iter, init, relaxation)
    batch, length, width = keys.shape[:-2], keys.shape[-2], keys.shape[-1]
    rows = keys.reshape(math.prod(batch), length, width)  # [B, L, D]
    if not (rows.is_cuda and has_triton()):  # the fused kernels read any dtype; the plain ones convert at each call
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

    A converged head takes part until the next check. The same labels give the same sums, so it does not change, and
    n_iter only counts while a head is running.
    """
    device = rows.device
    centroids = rows[:, initial_positions(rows.shape[1], n_clusters, seed)].float()
    means = centroids.clone()
    labels = torch.full(rows.shape[:2], -1, dtype=torch.int64, device=device)
    n_iter = torch.zeros(len(rows), dtype=torch.int64, device=device)
    running = torch.ones(len(rows), dtype=torch.bool, device=device)
    plain = torch.full_like(running, relaxation == 1)  # heads whose centroids are means
    active, active_rows = torch.arange(len(rows), device=device), rows
    for iteration in range(max_iter):
        new_labels = kmeans_assign(active_rows, centroids[active], metric=metric)
        n_iter += running
        changed = (new_labels != labels[active]).any(-1)
        running[active] &= changed | ~plain[active]
        plain[active] |= ~changed
        if _looks(iteration, device) and not running[active].all():
            unfinished = running[active]
            active, new_labels, active_rows = active[unfinished], new_labels[unfinished], active_rows[unfinished]
        if not len(active):
            break
        labels[active] = new_labels
        sums, sizes = kmeans_update(active_rows, new_labels, n_clusters)
        before = centroids[active]
        after = torch.where(sizes[..., None] > 0, sums / sizes[..., None], before)
        means[active] = after
        if relaxation != 1:
            # product, then sum: the rounding of a fused form (torch.lerp) depends on the element's place in the batch
            after = torch.where(plain[active, None, None], after, after + (after - before) * (relaxation - 1))
        centroids[active] = after
    return means, labels, n_iter, ~running


def _looks(iteration: int, device: torch.device) -> bool:
    return device.type == "cpu" or iteration % CHECK_EVERY == CHECK_EVERY - 1


def initial_positions(length: int, n_clusters: int, seed: int) -> Tensor:
    """Distinct positions of the keys that are the initial centroids, int64 [C] on the CPU.

    They are the same for all heads and devices, so that a head's clusters depend only on its keys and the seed.
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
