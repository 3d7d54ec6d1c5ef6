"""Bootstrap confidence intervals of means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError

_AT_ONCE = 1_000_000  # numbers drawn per batch: 16 MB of indices and values


def bootstrap_interval(
    values: NDArray[Any], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """`(low, high)`: the percentile bootstrap interval of the mean of `values` [n].

    n values are drawn with replacement, `resamples` times (`scipy.stats.bootstrap`); the interval holds the middle
    `level` of their means. Values must be independent: average all measurements of one sample first. If all values are
    equal, or there is only one, the interval has zero width and says nothing about the spread. Source: Efron and
    Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3.

    Raises InvalidInputError for no values, values that are not finite, a level outside 0 to 1, or no resamples.

    >>> bootstrap_interval(np.array([0.0, 0.0, 1.0, 1.0]))
    (0.0, 1.0)
    """
    numbers = np.asarray(values, np.float64)
    if numbers.ndim != 1 or not len(numbers) or not np.isfinite(numbers).all():
        raise InvalidInputError(
            "bootstrap_interval: values", f"{list(numbers.shape)} values", "[n] finite numbers, n ≥ 1"
        )
    if not 0 < level < 1:
        raise InvalidInputError("bootstrap_interval: level", level, "a number between 0 and 1")
    if resamples < 1:
        raise InvalidInputError("bootstrap_interval: resamples", resamples, "1 or more")
    if numbers.min() == numbers.max():  # scipy refuses a single value
        return float(numbers[0]), float(numbers[0])
    from scipy.stats import bootstrap  # takes half a second, so only when needed

    batch = max(1, _AT_ONCE // len(numbers))
    interval = bootstrap(
        (numbers,), np.mean, confidence_level=level, n_resamples=resamples, batch=batch, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return float(interval.low), float(interval.high)
