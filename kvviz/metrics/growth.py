"""Growth exponents: how times grow with the length."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InvalidInputError
from .fits import linear_fit


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
