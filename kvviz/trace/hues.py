"""The hue of a group: of a cluster, a page, whatever a method takes tokens by."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

HUES = 24  # steps of the colour circle; more of them the eye would not tell apart
UNCHOSEN = HUES  # the grey after the hues: attended without being recalled


def hue(groups: ArrayLike) -> NDArray[np.uint8]:
    """Step of the colour circle, 0 to HUES - 1, of each group; UNCHOSEN for -1.

    It depends on the group alone, so that a cluster keeps its hue over all steps. Neighbouring numbers lie 105° apart.
    Figures ask here; pages get hues with their data.
    """
    groups = np.asarray(groups, dtype=np.int64)
    return np.where(groups < 0, UNCHOSEN, groups * 7 % HUES).astype(np.uint8)
