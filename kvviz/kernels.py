"""The kernels of kvviz_kernels, under kvviz.kernels."""

from __future__ import annotations

from kvviz_kernels import Impl, gather_attention, kmeans_assign, kmeans_update, sort_by_label

__all__ = ["Impl", "gather_attention", "kmeans_assign", "kmeans_update", "sort_by_label"]
