"""What became of each token at a step: agreed, missed, wasted, and what is neither."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Verdict(IntEnum):
    """What a method and the oracle made of a token. Pages read the same numbers (js/comparer_column.js)."""

    AGREED = 0  # attended, and the oracle would attend it too
    WASTED = 1  # attended, and the oracle would not
    KEPT = 2  # attended without being chosen (sinks, recent window, generated tokens), and the oracle would not
    MISSED = 3  # not attended, and the oracle would
    MERGED_AWAY = 4  # attended as a part of its centroid, and the oracle would attend it
    UNMARKED = 255  # neither attended nor the oracle's


def agreement(
    attended: ArrayLike, oracle: ArrayLike, *, always: ArrayLike = False, merged: ArrayLike = False
) -> NDArray[np.uint8]:
    """The `Verdict` of each token, uint8 in the common shape of all four, which are booleans by token.

    `attended`: by the method, `oracle`: by the oracle of the same size. `always`: attended without being chosen, which
    can agree but is no waste. `merged`: stands in a centroid, by which a token is not missed.

    >>> agreement([True, True, False, False], [True, False, True, False]).tolist()
    [0, 1, 3, 255]
    """
    mine, true, kept, joined = (np.asarray(mask, bool) for mask in (attended, oracle, always, merged))
    cases: list[NDArray[Any]] = [mine & true, mine & kept, mine, true & joined, true]
    verdicts = (Verdict.AGREED, Verdict.KEPT, Verdict.WASTED, Verdict.MERGED_AWAY, Verdict.MISSED)
    codes = [np.uint8(verdict) for verdict in verdicts]
    return np.asarray(np.select(cases, codes, np.uint8(Verdict.UNMARKED)), np.uint8)
