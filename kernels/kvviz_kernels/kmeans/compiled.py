"""The assignment step of k-means with a compiled search for the largest score, for the CPU."""

from __future__ import annotations

import numpy as np
from numba import prange
from torch import Tensor

from ..compiling import Array, array_of, kernel, parts_of, run
from . import naive


def kmeans_assign(keys: Tensor, centroids: Tensor, *, metric: str = "cosine") -> Tensor:
    """Label of each key's nearest centroid; see `kvviz_kernels.kmeans_assign`. The products are those of torch."""
    return naive.kmeans_assign(keys, centroids, metric=metric, argmax=_argmax)


def _argmax(buffer: Tensor, labels: Tensor) -> None:
    """The first row with the largest score of each of the columns of `labels`, whatever the number of equal ones.

    0.21 ms for 411 x 3,648 scores, where torch takes 0.5 ms, and 2.7 ms with equal centroids (EPYC, 1 thread).
    """
    run(_first, buffer.shape[0] * len(labels), array_of(buffer), parts_of(len(labels)), labels.numpy())


def _first_largest(scores: Array, parts: int, labels: Array) -> None:
    """One task per part of the columns: row by row, a maximum and its row for all columns at once, vectorized."""
    size = -(-len(labels) // parts)
    for part in prange(parts):
        start, stop = min(part * size, len(labels)), min((part + 1) * size, len(labels))
        best, rows = scores[0, start:stop].copy(), np.zeros(stop - start, np.int32)
        for row in range(1, len(scores)):
            rivals = scores[row, start:stop]
            for i in range(len(best)):
                better = rivals[i] > best[i]
                best[i] = rivals[i] if better else best[i]
                rows[i] = row if better else rows[i]
        for i in range(len(rows)):
            labels[start + i] = rows[i]


_first = kernel(_first_largest)
