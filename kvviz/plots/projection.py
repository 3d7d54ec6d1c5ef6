"""Projection of vectors to two dimensions, by PCA, along a query, or by t-SNE: the same seed gives the same map."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PROJECTIONS = ("pca", "tsne")


def project(
    keys: NDArray[Any], shown: NDArray[np.int64], extra: NDArray[Any], projection: str, seed: int
) -> tuple[NDArray[np.float64], tuple[str, str]]:
    """Positions [len(shown) + E, 2] of the keys `shown` and of the E vectors `extra`, and the titles of the two axes.

    `keys` [L, D], `extra` [E, D]. PCA is fitted on all keys; the extra vectors are projected onto it. t-SNE has no
    such projection: it lays out the shown keys and the extra vectors together, by cosine distance.
    """
    vectors = np.concatenate([keys[shown], extra])
    if projection == "pca":
        from sklearn.decomposition import PCA

        with np.errstate(invalid="ignore"):  # scikit-learn divides by the variance, 0 for equal keys
            # of the covariance: 0.02 s for 32,736 keys, where the SVD of all keys takes 0.12 s (EPYC, 1 thread)
            fitted = PCA(n_components=2, svd_solver="covariance_eigh").fit(keys.astype(np.float64))
        variance = float(keys.var(0, ddof=1).sum())
        shares = fitted.explained_variance_ / variance if variance > 0 else (0.0, 0.0)
        names = [f"principal component {axis} ({share:.0%} of variance)" for axis, share in enumerate(shares, start=1)]
        return np.asarray(fitted.transform(vectors), np.float64), (names[0], names[1])
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's dependency, no types

    # On unit vectors the Euclidean distance has the order of the cosine distance and takes a sixth of the time. One
    # thread, since scikit-learn's OpenMP threads busy-wait: 20 s instead of 0.3 s for 40 keys on two busy cores.
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
    perplexity = min(30.0, (len(units) - 1) / 3)
    with threadpool_limits(1):
        layout = TSNE(n_components=2, init="pca", perplexity=perplexity, random_state=seed).fit_transform(units)
    return np.asarray(layout, np.float64), ("t-SNE 1 (no unit)", "t-SNE 2 (no unit)")


def query_axes(
    keys: NDArray[Any], query: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[float, float]]:
    """The origin [2] and axes [D, 2] of a map along a query, and the share of variance on each axis.

    A vector x lies at origin + x @ axes. The first axis is the direction of the query [D], so that q·x grows from left
    to right; the second is the first principal component of what is orthogonal to it, of the keys [L, D]. The mean key
    lies at 0.
    """
    from sklearn.decomposition import PCA

    centred = keys.astype(np.float64) - keys.astype(np.float64).mean(0)
    first = query.astype(np.float64) / max(float(np.linalg.norm(query)), 1e-30)
    along = centred @ first
    rest = centred - along[:, None] * first
    with np.errstate(invalid="ignore"):  # scikit-learn divides by the variance, 0 for equal keys
        second = PCA(n_components=1, svd_solver="covariance_eigh").fit(rest).components_[0]
    second = second - (second @ first) * first  # of keys on one line, any direction would do
    axes = np.stack([first, second], axis=1)
    variance = float(centred.var(0).sum())
    shares = (float(along.var()) / variance, float((rest @ second).var()) / variance) if variance > 0 else (0.0, 0.0)
    return -(keys.astype(np.float64).mean(0) @ axes), axes, shares
