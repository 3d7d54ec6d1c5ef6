"""The public kernels of the package kvviz_kernels."""

from __future__ import annotations

from kvviz_kernels import (
    Impl,
    gather_attention,
    gather_weights,
    ivf_lists,
    ivf_union,
    kmeans_assign,
    kmeans_update,
    merge_attention,
    page_scores,
    pq_scores,
    select_clusters,
    soft_match,
    sort_by_label,
    take_best,
    take_clusters,
)

__all__ = [
    "Impl",
    "gather_attention",
    "gather_weights",
    "ivf_lists",
    "ivf_union",
    "kmeans_assign",
    "kmeans_update",
    "merge_attention",
    "page_scores",
    "pq_scores",
    "select_clusters",
    "soft_match",
    "sort_by_label",
    "take_best",
    "take_clusters",
]
