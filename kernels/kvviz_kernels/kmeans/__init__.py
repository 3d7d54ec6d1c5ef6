"""Steps of k-means: the nearest centroid of every key, and the sums of clusters."""

from __future__ import annotations

from torch import Tensor

from ..dispatch import Impl, use_fused
from . import naive
from .shared import METRICS, sort_by_label

__all__ = ["METRICS", "kmeans_assign", "kmeans_update", "sort_by_label"]


def kmeans_assign(keys: Tensor, centroids: Tensor, *, metric: str = "cosine", impl: Impl = "auto") -> Tensor:
    """Label of each key's nearest centroid, int64 [..., L]; equal scores go to the lowest label.

    keys [..., L, D] and centroids [..., C, D], the same leading dimensions, any float dtype, computed in float32.
    metric: "cosine" (a zero vector has similarity 0 to everything), "l2" or "ip" (largest inner product).
    The fused form multiplies on tensor cores, by as many products as float32 takes: centroids in three bfloat16 parts,
    which add up to them exactly, for bfloat16 keys; in two TF32 parts (2^-21 of their size may be missing) for float16
    and float32 keys. So a key between centroids that are level to float32's last bits may go to another of them.
    Raises ValueError for another metric.
    """
    if use_fused("kmeans_assign", impl, keys):
        from . import fused

        return fused.kmeans_assign(keys, centroids, metric=metric)
    return naive.kmeans_assign(keys, centroids, metric=metric)


def kmeans_update(keys: Tensor, labels: Tensor, n_clusters: int, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Sum of each cluster's keys, float32 [..., C, D], and its number of keys, int64 [..., C].

    keys [..., L, D], any float dtype; labels int64 [..., L], each in [0, n_clusters). Which keys are added up
    in which order depends on the cluster's labels alone, without atomics: the same input gives the same bits, and a
    head alone the same as in a batch. An empty cluster has sum 0.
    """
    if use_fused("kmeans_update", impl, keys):
        from . import fused

        return fused.kmeans_update(keys, labels, n_clusters)
    return naive.kmeans_update(keys, labels, n_clusters)
