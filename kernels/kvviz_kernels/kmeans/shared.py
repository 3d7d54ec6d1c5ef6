"""What the naive and the fused k-means share: metrics as linear scores, and positions sorted by label."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

METRICS = ("cosine", "ip", "l2")


def linear_scores(centroids: Tensor, metric: str) -> tuple[Tensor, Tensor | None]:
    """Weights float32 [..., C, D] and bias float32 [..., C] or None.

    The nearest centroid of a key is the one with the largest key·weight + bias.
    A key's own norm never changes which centroid is nearest, so keys need no preparation for any metric.
    Raises ValueError for an unknown metric.
    """
    centroids = centroids.float()
    if metric == "cosine":
        return F.normalize(centroids, dim=-1, eps=torch.finfo(torch.float32).tiny), None
    if metric == "ip":
        return centroids, None
    if metric == "l2":
        return centroids, centroids.square().sum(-1).mul_(-0.5)
    raise ValueError(f"kmeans_assign: got metric={metric!r}; wanted one of {', '.join(METRICS)}")


def sort_by_label(labels: Tensor, n_clusters: int) -> tuple[Tensor, Tensor]:
    """Positions sorted by label, ascending inside a label, int64 [..., L], and cluster sizes, int64 [..., C].

    labels: int64 [..., L], each in [0, n_clusters).
    """
    if labels.is_cpu and n_clusters <= 1 << 16:
        # NumPy sorts 16-bit integers by radix: 0.04 ms for 3 x 8,192 labels against 0.9 ms of torch.sort (EPYC Zen 5)
        order = torch.from_numpy(np.argsort(labels.numpy().astype(np.uint16), axis=-1, kind="stable"))
    else:
        order = torch.sort(labels, dim=-1, stable=True).indices
    batch = labels.shape[:-1]
    bins = batch.numel() * n_clusters  # every row's clusters, one row after the other
    first_bins = torch.arange(0, bins, n_clusters, device=labels.device).view(*batch, 1)
    return order, torch.bincount((labels + first_bins).flatten(), minlength=bins).view(*batch, n_clusters)
