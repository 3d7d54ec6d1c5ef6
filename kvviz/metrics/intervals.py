"""How sure a mean is: bootstrap intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError

_AT_ONCE = 1_000_000  # numbers drawn at once: 16 MB of places and values


def bootstrap_interval(
    values: NDArray[Any], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Lowest and highest mean that resampling allows: the percentile bootstrap interval of the mean of `values` [n].

    `values` are drawn n times with replacement, `resamples` times over (`scipy.stats.bootstrap`); the interval holds
    the middle `level` of the means. What was measured on the same sample must be one value, since draws are taken to be
    independent. Where all values are equal, or there is only one, the interval has no width: then the values say
    nothing about the spread. Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), section 13.3.

    Raises InvalidInputError for no values, values that are not finite numbers, a level outside 0 to 1 or no resamples.

    >>> bootstrap_interval(np.array([0.0, 0.0, 1.0, 1.0]))
    (0.0, 1.0)
    """
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise InvalidInputError(
            "bootstrap_interval: values", f"{list(found.shape)} values", "[n] finite numbers, n ≥ 1"
        )
    if not 0 < level < 1:
        raise InvalidInputError("bootstrap_interval: level", level, "a number between 0 and 1")
    if resamples < 1:
        raise InvalidInputError("bootstrap_interval: resamples", resamples, "1 or more")
    if found.min() == found.max():  # one value alone is refused by scipy
        return float(found[0]), float(found[0])
    from scipy.stats import bootstrap  # half a second, so not before it is needed

    batch = max(1, _AT_ONCE // len(found))
    interval = bootstrap(
        (found,), np.mean, confidence_level=level, n_resamples=resamples, batch=batch, method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    return float(interval.low), float(interval.high)
