"""Clusterings of keys."""

from __future__ import annotations

from .kmeans import Clusters, kmeans

__all__ = ["Clusters", "kmeans"]
