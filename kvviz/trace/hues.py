"""Hues of groups: of clusters, pages, or whatever a method selects tokens by."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

HUES = 24  # steps of the colour circle; more would not be distinguishable
UNCHOSEN = HUES  # the grey after the hues, for tokens attended to without being selected


def hue(groups: ArrayLike) -> NDArray[np.uint8]:
    """The hue of each group, a step of the colour circle from 0 to HUES - 1; UNCHOSEN for -1.

    It depends only on the group, so that a cluster keeps its hue over all steps. Consecutive numbers are 105° apart.
    Figures call this function; web pages get the hues with their data.
    """
    groups = np.asarray(groups, dtype=np.int64)
    return np.where(groups < 0, UNCHOSEN, groups * 7 % HUES).astype(np.uint8)
