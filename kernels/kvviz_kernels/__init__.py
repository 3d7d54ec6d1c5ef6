"""Kernels of kvviz in plain torch ("naive") and in Triton ("fused"), with one signature.

Every function takes `impl`: "naive", "fused", or "auto", which is fused for CUDA tensors if Triton is installed and
naive otherwise. Fused kernels need a GPU, or TRITON_INTERPRET=1 (Triton's slow interpreter, for tests).
"""

from __future__ import annotations

from .attention import gather_attention, merge_attention
from .dispatch import Impl, has_triton
from .inverted_file import ivf_lists, ivf_union
from .kmeans import kmeans_assign, kmeans_update, sort_by_label
from .matching import soft_match
from .selection import page_scores, pq_scores, select_clusters, take_best, take_clusters

__all__ = [
    "Impl",
    "gather_attention",
    "has_triton",
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
