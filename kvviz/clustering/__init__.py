"""Clustering of keys: k-means, pages, product quantization, query centroids and soft matching."""

from __future__ import annotations

from .iterations import IterationModel, fit_iterations, profile_clustering, profile_compute
from .kmeans import Clusters, kmeans
from .pages import Pages, page_bounds
from .product_quantization import Codebook, product_quantize
from .query_centroids import QueryCentroidIndex, query_centroids
from .soft_matching import chunked_soft_matching

__all__ = [
    "Clusters",
    "Codebook",
    "IterationModel",
    "Pages",
    "QueryCentroidIndex",
    "chunked_soft_matching",
    "fit_iterations",
    "kmeans",
    "page_bounds",
    "product_quantize",
    "profile_clustering",
    "profile_compute",
    "query_centroids",
]
