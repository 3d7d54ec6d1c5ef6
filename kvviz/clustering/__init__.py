"""Clusterings of keys."""

from __future__ import annotations

from .kmeans import Clusters, kmeans
from .pages import Pages, page_bounds

__all__ = ["Clusters", "Pages", "kmeans", "page_bounds"]
