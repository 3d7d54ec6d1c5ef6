"""The maps of the cluster inspector: where keys and queries lie in two dimensions, by three projections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

PROJECTIONS = ("pca", "query", "tsne")
MOST_LAID_OUT = 2048  # keys that t-SNE lays out: about 7 s on one core (EPYC); 4,096 take 17 s


@dataclass(frozen=True)
class MapKey:
    """Which map: a head's keys, or one of `parts` parts of them, in a projection.

    `part` is -1 for whole keys. `step` is -1 if the map does not depend on it, and `seed` 0.
    """

    layer: int
    head: int
    projection: str
    part: int = -1
    parts: int = 1
    step: int = -1
    seed: int = 0


@dataclass(frozen=True)
class Places:
    """The places of keys and queries on a map; `origin` [2] and `axes` [D, 2] place any other vector, but not in t-SNE.

    A key that t-SNE leaves out is at NaN.
    """

    points: NDArray[np.float64] = field(repr=False)  # [P, 2]
    stars: NDArray[np.float64]  # [S, 2] the query of each step, as long as keys are on average
    origin: NDArray[np.float64]
    axes: NDArray[np.float64] = field(repr=False)
    titles: tuple[str, str]


def places(key: MapKey, keys: NDArray[Any], queries: NDArray[Any]) -> Places:
    """The map `key` of keys [P, D] and the queries [S, D] of the steps, of the part that it names."""
    from ..plots.projection import project, query_axes

    if key.part >= 0:
        keys, queries = (np.split(vectors, key.parts, axis=1)[key.part] for vectors in (keys, queries))
    keys = keys.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(queries, axis=-1, keepdims=True), 1e-30)
    scaled = queries * np.linalg.norm(keys, axis=-1).mean() / lengths
    count, width = keys.shape
    if key.projection == "query":
        origin, axes, shares = query_axes(keys, queries[key.step])
        titles = (f"direction of the query at step {key.step} ({shares[0]:.1%} of variance)",
                  f"principal component orthogonal to it ({shares[1]:.0%} of variance)")  # fmt: skip
        return Places(origin + keys @ axes, origin + scaled @ axes, origin, axes, titles)
    if key.projection == "tsne":
        shown = np.unique(np.linspace(0, count - 1, min(count, MOST_LAID_OUT)).astype(np.int64))
        laid_out, titles = project(keys, shown, scaled, "tsne", key.seed)
        points = np.full((count, 2), np.nan)
        points[shown] = laid_out[: len(shown)]
        some = f"t-SNE of {len(shown):,} of {count:,} keys" if len(shown) < count else f"t-SNE of {count:,} keys"
        names = (f"{some} (no unit)", "no unit")
        return Places(points, laid_out[len(shown) :], np.zeros(2), np.zeros((width, 2)), names)
    # PCA is affine: the projections of 0 and of the unit vectors give that of every vector, without a new fit.
    extra = np.concatenate([scaled, np.zeros((1, width)), np.eye(width)])
    projected, titles = project(keys, np.arange(count), extra, "pca", 0)
    stars, origin, units = np.split(projected[count:], [len(scaled), len(scaled) + 1])
    return Places(projected[:count], stars, origin[0], units - origin, titles)


def pack(key: MapKey, found: Places) -> bytes:
    """A map as safetensors bytes, which js/slice.js reads."""
    return save({
        "place": np.array([key.layer, key.head], np.int32),
        "map": np.array([PROJECTIONS.index(key.projection), key.part, key.step], np.int32),
        **{name: np.ascontiguousarray(getattr(found, name), np.float32) for name in
           ("points", "stars", "origin", "axes")},
        "titles": np.frombuffer("\n".join(found.titles).encode(), np.uint8),
    })  # fmt: skip
