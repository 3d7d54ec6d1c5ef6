"""Least-squares fits: the nearest line, power law or convex curve, and how far the measured values are from it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InvalidInputError

Array = NDArray[Any]


class ConvexFit(NamedTuple):
    """A convex, non-increasing curve fitted to a measured one by least squares."""

    values: NDArray[np.float64]  # [..., K]
    error: NDArray[np.float64]  # [...] root mean square of measured − fitted, in the unit of the values
    explained: NDArray[np.float64]  # [...] share of the measured curve's variance that the fit explains, in 0..1


class LinearFit(NamedTuple):
    """A least-squares line through points, and how closely they follow it."""

    slope: float
    intercept: float
    correlation: float  # Pearson's r, NaN if x or y does not vary


def linear_fit(x: Array, y: Array) -> LinearFit:
    """Slope, intercept and Pearson correlation of the least-squares line y = slope x + intercept.

    `x` and `y` [P]. If x does not vary, the line is flat at the mean of y. Raises InvalidInputError for other shapes,
    fewer than 2 points or values that are not finite.

    >>> [round(number, 6) for number in linear_fit([0, 1, 2], [1, 3, 5])]
    [2.0, 1.0, 1.0]
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if x.ndim != 1 or x.shape != y.shape or len(x) < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InvalidInputError("linear_fit", f"x {list(x.shape)} and y {list(y.shape)}", "at least 2 finite points")
    x_centred, y_centred = x - x.mean(), y - y.mean()
    slope = float(x_centred @ y_centred / (x_centred @ x_centred)) if x_centred.any() else 0.0
    spread = float(np.linalg.norm(x_centred) * np.linalg.norm(y_centred))
    correlation = float(x_centred @ y_centred) / spread if spread > 0 else float("nan")
    return LinearFit(slope, float(y.mean() - slope * x.mean()), correlation)


def growth_exponent(lengths: ArrayLike, seconds: ArrayLike) -> tuple[float, float]:
    """`(exponent, seconds_at_1)` of the best power law: seconds ≈ seconds_at_1 · length ** exponent.

    `lengths` and `seconds` are [n]. The fit is least squares on the logarithms, so that relative errors count. An
    exponent of 1 means linear growth, 2 quadratic.

    Raises InvalidInputError for arrays of different shapes, numbers that are not above 0, or fewer than two lengths.

    >>> [round(number, 6) for number in growth_exponent([1024, 2048, 4096], [1.0, 4.0, 16.0])]
    [2.0, 1e-06]
    """
    x, y = np.asarray(lengths, np.float64), np.asarray(seconds, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InvalidInputError("growth_exponent", f"shapes {x.shape} and {y.shape}", "two arrays [n]")
    if not (np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)).all() or len(np.unique(x)) < 2:
        raise InvalidInputError("growth_exponent", f"{len(x)} points", "at least two lengths, all numbers above 0")
    exponent, intercept, _ = linear_fit(np.log(x), np.log(y))
    return exponent, float(np.exp(intercept))


def convex_fit(distances: Array, values: Array) -> ConvexFit:
    """The convex, non-increasing curve nearest to `values` [..., K] at `distances` [K], with its error.

    The fit is a sum of hinges, c + Σⱼ bⱼ max(dⱼ − d, 0) with bⱼ >= 0 and c free; every such curve through the K
    distances has this form. Non-negative least squares finds the nearest one; all distances have equal weight. The
    `error` is 0 exactly if the curve is convex and non-increasing; a rising or concave curve has an `explained` near 0.
    A constant curve is fully explained.

    Raises InvalidInputError for fewer than 3 distances, distances that do not increase, or values that are not finite.

    Source: CentroidKV's Observation 2 (fig. 3), f(1) − f(2) >= f(2) − f(3) >= … >= 0 in its Theorem A.1. The paper
    reads the shape off a plot and does not measure it, so `error` and `explained` are our definitions.

    >>> convex_fit([1, 2, 4], [0.9, 0.5, 0.3]).error < 1e-9
    np.True_
    """
    from scipy.optimize import nnls

    distances, values = np.asarray(distances, np.float64), np.asarray(values, np.float64)
    if distances.ndim != 1 or len(distances) < 3 or not (np.diff(distances) > 0).all():
        raise InvalidInputError("convex_fit: distances", distances.tolist(), "at least 3, increasing")
    if values.shape[-1:] != distances.shape or not np.isfinite(values).all():
        got = f"{'finite' if np.isfinite(values).all() else 'not finite'}, shape {list(values.shape)}"
        raise InvalidInputError("convex_fit: values", got, f"finite numbers [..., {len(distances)}]")
    span = distances[-1] - distances[0]
    hinges = np.maximum(distances[1:] - distances[:, None], 0.0) / span  # [K, K - 1]
    hinges -= hinges.mean(0)  # centring the columns and the curve is the same as fitting a free constant
    means = values.mean(-1, keepdims=True)
    centred = (values - means).reshape(-1, len(distances))
    fitted = np.array([hinges @ nnls(hinges, curve)[0] for curve in centred]).reshape(values.shape)
    squares = ((values - means - fitted) ** 2).mean(-1)
    variance = ((values - means) ** 2).mean(-1)
    explained = 1.0 - np.divide(squares, variance, out=np.zeros_like(variance), where=variance > 0)
    return ConvexFit(fitted + means, np.sqrt(squares), np.clip(explained, 0.0, 1.0))
