"""Projection of vectors to two dimensions, by PCA or t-SNE: the same seed gives the same map."""

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
            fitted = PCA(n_components=2, svd_solver="full").fit(keys)
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
