"""Outlier channels: channels of a head's keys that are much larger than the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError

Array = NDArray[Any]


def channel_magnitudes(vectors: Array) -> NDArray[np.float64]:
    """Mean magnitude of each channel over the tokens, [..., D].

    `vectors` [..., L, D], such as the keys of a layer [H, L, D]. Raises InvalidInputError for no tokens or channels, or
    for values that are not finite. Source: KIVI (arXiv 2402.02750), figure 2, which ClusterKV (arXiv 2412.03213),
    section III-B, refers to.

    >>> channel_magnitudes(np.array([[1.0, -4.0], [-3.0, 4.0]])).tolist()
    [2.0, 4.0]
    """
    vectors = np.asarray(vectors)
    if vectors.ndim < 2 or 0 in vectors.shape[-2:]:
        raise InvalidInputError("channel_magnitudes", list(vectors.shape), "[..., L, D] with L and D at least 1")
    if not np.isfinite(vectors).all():
        raise InvalidInputError("channel_magnitudes", "NaN or infinity", "finite numbers")
    return np.asarray(np.abs(vectors).mean(-2, dtype=np.float64))


def outlier_ratio(vectors: Array) -> NDArray[np.float64]:
    """The largest channel's magnitude as a multiple of the median channel's, [...]; infinite if the median is 0.

    `vectors` [..., L, D]; magnitudes are those of `channel_magnitudes`, and so are the errors. Without outlier channels
    the ratio is near 1. ClusterKV (arXiv 2412.03213), section III-B, prefers cosine to L2 and inner product because of
    outlier channels, and gives no measure of them; the ratio is ours.

    >>> float(outlier_ratio(np.array([[1.0, -1.0, 5.0], [1.0, 1.0, -7.0]])))
    6.0
    """
    magnitudes = channel_magnitudes(vectors)
    largest, median = magnitudes.max(-1), np.median(magnitudes, axis=-1)
    return np.asarray(np.divide(largest, median, out=np.full_like(largest, np.inf), where=median > 0))
