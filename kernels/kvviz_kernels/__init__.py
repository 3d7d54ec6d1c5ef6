"""Kernels of kvviz in plain torch ("naive"), Numba ("compiled") and Triton ("fused"), with one signature.

Every function takes `impl`: "naive", "compiled", "fused" or "auto". Fused kernels need a GPU, or TRITON_INTERPRET=1
(Triton's slow interpreter, for tests); "auto" takes them for CUDA tensors if Triton is installed. The kernels of decode
steps that are slow in torch on a CPU, and the assignment of k-means, have a compiled form for float32; "auto" takes it
if Numba is installed. Numba compiles a kernel at its first call, in a few seconds, and keeps it on disk. Compiled
kernels assume finite numbers: with NaN or infinity among queries, keys or values results are undefined. In all other
cases "auto" is naive.
"""

from __future__ import annotations

from .attention import gather_attention, gather_weights, merge_attention
from .dispatch import Impl, has_numba, has_triton
from .inverted_file import ivf_lists, ivf_union
from .kmeans import kmeans_assign, kmeans_update, sort_by_label
from .matching import soft_match
from .selection import page_scores, pq_scores, select_clusters, take_best, take_clusters

__all__ = [
    "Impl",
    "gather_attention",
    "gather_weights",
    "has_numba",
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
