"""Means with their spread, and growth exponents of times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def over_seeds_and_windows(cells: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    """Mean of the values by (seed, window); minimum and maximum of the means per seed, and per window."""

    def means(axis: int) -> list[float]:
        places = sorted({key[axis] for key in cells})
        return [statistics.fmean(value for key, value in cells.items() if key[axis] == place) for place in places]

    by_seed, by_window = means(0), means(1)
    return {
        "mean": statistics.fmean(cells.values()),
        "seeds": [min(by_seed), max(by_seed)] if len(by_seed) > 1 else None,
        "windows": [min(by_window), max(by_window)],
    }


def exponents(lengths: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Growth exponents of the time from each length to the next: 1 is linear, 2 quadratic."""
    pairs = zip(lengths, lengths[1:], seconds, seconds[1:], strict=False)
    return [math.log(after / before) / math.log(longer / shorter) for shorter, longer, before, after in pairs]


def cheaper_from(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> int | None:
    """The smallest length from which on `ours` are always less than `theirs`; None if not even at the last length."""
    cheaper = None
    for length, our_time, their_time in zip(reversed(lengths), reversed(ours), reversed(theirs), strict=True):
        if our_time >= their_time:
            break
        cheaper = length
    return cheaper
