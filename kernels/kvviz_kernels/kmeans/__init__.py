"""The steps of k-means: the nearest centroid of each key, and the sums of the clusters."""

from __future__ import annotations

from torch import Tensor

from ..dispatch import Impl, form, use_fused
from . import naive
from .shared import METRICS, sort_by_label

__all__ = ["METRICS", "kmeans_assign", "kmeans_update", "sort_by_label"]


def kmeans_assign(keys: Tensor, centroids: Tensor, *, metric: str = "cosine", impl: Impl = "auto") -> Tensor:
    """Label of each key's nearest centroid, int64 [..., L]; ties go to the lowest label.

    keys [..., L, D] and centroids [..., C, D] have the same leading dimensions and any float dtype; computed in
    float32. metric: "cosine" (a zero vector has similarity 0 to all), "l2" or "ip" (largest inner product).

    The fused form uses tensor cores, with enough products for float32: centroids are split into three bfloat16 parts
    with an exact sum for bfloat16 keys, and into two TF32 parts (an error of up to 2^-21 of their size) for float16 and
    float32 keys. A key with nearly equal scores, to float32's last bits, may thus get another label. Raises ValueError
    for another metric.
    """
    chosen = form("kmeans_assign", impl, keys, keys, centroids)
    if chosen == "fused":
        from . import fused

        return fused.kmeans_assign(keys, centroids, metric=metric)
    if chosen == "compiled":
        from . import compiled

        return compiled.kmeans_assign(keys, centroids, metric=metric)
    return naive.kmeans_assign(keys, centroids, metric=metric)


def kmeans_update(keys: Tensor, labels: Tensor, n_clusters: int, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Sum of each cluster's keys, float32 [..., C, D], and its number of keys, int64 [..., C].

    keys [..., L, D], any float dtype; labels int64 [..., L], each in [0, n_clusters). The order of the additions
    depends only on the cluster's labels, without atomics: results are bit for bit reproducible, and do not depend on
    the batch. An empty cluster has sum 0.
    """
    if use_fused("kmeans_update", impl, keys):
        from . import fused

        return fused.kmeans_update(keys, labels, n_clusters)
    return naive.kmeans_update(keys, labels, n_clusters)
