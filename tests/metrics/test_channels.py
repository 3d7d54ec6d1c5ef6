"""Outlier channels against loops over channels and tokens."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from kvviz import InvalidInputError, metrics


def keys(*shape: int) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=shape)
    vectors[..., 3] *= 9
    return vectors.astype(np.float16)


def by_loops(vectors: np.ndarray) -> list[float]:
    return [sum(abs(float(token[channel])) for token in vectors) / len(vectors) for channel in range(vectors.shape[1])]


def test_channel_magnitudes_are_means_over_tokens():
    vectors = keys(2, 3, 50, 7)
    found = metrics.channel_magnitudes(vectors)
    assert found.shape == (2, 3, 7)
    for row in np.ndindex(2, 3):
        np.testing.assert_allclose(found[row], by_loops(vectors[row]), rtol=1e-9)


@pytest.mark.parametrize("channels", [7, 8])  # the median of an even number is between two channels
def test_the_ratio_is_that_of_the_largest_channel_to_the_median(channels):
    vectors = keys(4, 50, channels)
    expected = [max(sizes := by_loops(head)) / statistics.median(sizes) for head in vectors]
    np.testing.assert_allclose(metrics.outlier_ratio(vectors), expected, rtol=1e-9)
    assert (metrics.outlier_ratio(vectors) > 5).all()


def test_the_ratio_without_outliers_is_one_and_infinite_for_a_median_of_zero():
    assert metrics.outlier_ratio(np.ones((5, 6))) == 1
    assert metrics.outlier_ratio(np.eye(6)[:1]) == np.inf


def test_the_ratio_does_not_depend_on_the_scale_of_keys():
    np.testing.assert_allclose(metrics.outlier_ratio(keys(50, 8) * 4), metrics.outlier_ratio(keys(50, 8)))


@pytest.mark.parametrize("vectors", [np.zeros(3), np.zeros((0, 3)), np.zeros((3, 0)), np.array([[1.0, np.nan]])])
def test_what_has_no_channels_or_tokens_is_refused(vectors):
    with pytest.raises(InvalidInputError, match="channel_magnitudes"):
        metrics.channel_magnitudes(vectors)
