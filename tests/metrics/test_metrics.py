"""Metrics against their definitions, computed with Python sets and loops."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvviz import metrics
from kvviz.errors import InvalidInputError

LENGTH = 12
# Rows of distinct positions, with padding at random places: [2, 3, S].
positions = st.integers(0, LENGTH).flatmap(
    lambda slots: st.lists(
        st.sets(st.integers(0, LENGTH - 1), max_size=slots).flatmap(
            lambda chosen: st.permutations([*chosen, *[-1] * (slots - len(chosen))])
        ),
        min_size=6, max_size=6,
    ).map(lambda rows: np.array(rows, np.int64).reshape(2, 3, slots))
)  # fmt: skip
weights = arrays(np.float64, (2, 3, LENGTH), elements=st.floats(0, 1, width=32))


def rows_of(*indices):
    """The sets of positions of each row."""
    flat = (array.reshape(6, -1).tolist() for array in indices)
    return list(zip(*([{index for index in row if index >= 0} for row in rows] for rows in flat), strict=True))


@given(positions, positions)
def test_recall_is_the_share_of_the_true_tokens_that_were_selected(selected, true):
    expected = [len(chosen & best) / len(best) if best else 1.0 for chosen, best in rows_of(selected, true)]
    np.testing.assert_allclose(metrics.recall(selected, true), np.reshape(expected, (2, 3)))


@given(weights, positions)
def test_attention_mass_is_the_sum_over_the_selected_tokens(weights, selected):
    chosen = [row for (row,) in rows_of(selected)]
    expected = [sum(row[index] for index in some) for row, some in zip(weights.reshape(6, -1), chosen, strict=True)]
    np.testing.assert_allclose(metrics.attention_mass(weights, selected), np.reshape(expected, (2, 3)), atol=1e-12)


def test_merged_tokens_count_by_what_their_centroids_give_them():
    """By hand: two query heads, tokens 1 and 2 in one centroid, token 3 in one of its own."""
    exact = np.array([[0.4, 0.3, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2, 0.2]])
    share = metrics.merged_share(exact, [[0.3, 0.12], [0.4, 0.25]], [-1, 0, 0, 1, -1])
    np.testing.assert_allclose(share, [0, (0.15 + 0.2) / 0.5, 1, 1, 0])
    assert metrics.attention_mass(exact.mean(0), [0, 4], share) == pytest.approx(1 - 0.15 / 2)
    for true, recalled in (([0, 1], 0.85), ([1, -1], 0.7), ([0, 3, 4], 1), ([-1, -1], 1)):
        assert metrics.recall([0, 4], true, share) == pytest.approx(recalled)
    assert metrics.recall([0], [3, 4], share) == 0.5, "token 4 is neither selected nor merged"


def test_a_large_centroid_recalls_nearly_nothing_of_its_best_token():
    exact = np.array([0.9, *[0.1 / 899] * 899])
    share = metrics.merged_share(exact[None], [[0.09]], np.zeros(900, int))
    np.testing.assert_allclose(share, [1e-4 / 0.9, *[1e-4 / (0.1 / 899)] * 899])
    assert metrics.recall([-1], [0], share) < 0.001


@given(positions)
def test_member_mask_marks_exactly_the_positions(indices):
    mask = metrics.member_mask(indices, LENGTH)
    assert mask.shape == (2, 3, LENGTH)
    assert [set(np.flatnonzero(row)) for row in mask.reshape(6, -1)] == [row for (row,) in rows_of(indices)]


@given(weights.map(lambda w: np.round(w, 1)), st.integers(0, LENGTH + 3))  # rounded: many ties
def test_top_tokens_are_the_heaviest_and_ties_go_to_the_earlier(weights, count):
    chosen = metrics.top_tokens(weights, count)
    assert chosen.dtype == np.int64
    for row, indices in zip(weights.reshape(6, -1), chosen.reshape(6, -1).tolist(), strict=True):
        assert indices == sorted(sorted(range(LENGTH), key=lambda place: (-row[place], place))[:count])


FEW_VALUES = st.sampled_from([0.0, 0.25, 0.5, 0.75, np.nan])


@given(arrays(np.float32, (2, 3, LENGTH), elements=FEW_VALUES), st.integers(0, LENGTH + 3))
@example(np.linspace(0, 1, 700, dtype=np.float32).reshape(2, 350) % 0.3, 20)  # rows of which most is ruled out first
@example(np.where(np.arange(350) % 9, 0.5, np.nan)[None].astype(np.float32), 40)
def test_ranked_tokens_are_the_start_of_a_stable_sort(weights, count):
    order = np.argsort(-weights, axis=-1, kind="stable")
    np.testing.assert_array_equal(metrics.ranked_tokens(weights, count), order[..., :count])


def test_no_set_of_the_same_size_holds_more_attention_than_the_top_tokens():
    weights = np.random.default_rng(0).random((1, 7))
    best = metrics.attention_mass(weights, metrics.top_tokens(weights, 3))[0]
    assert best == max(weights[0, list(subset)].sum() for subset in itertools.combinations(range(7), 3))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.uint8])
def test_top_tokens_of_small_and_unsigned_types(dtype):
    assert metrics.top_tokens(np.array([0, 5, 2, 5, 1], dtype), 3).tolist() == [1, 2, 3]


@given(
    arrays(np.float64, (4, 3), elements=st.floats(-1e3, 1e3)), arrays(np.float64, (4, 3), elements=st.floats(-1e3, 1e3))
)
def test_output_error_is_the_relative_distance(output, exact):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a zero reference gives no warning
        errors = metrics.output_error(output, exact)
    for error, row, true in zip(errors, output, exact, strict=True):
        distance, norm = np.linalg.norm(row - true), np.linalg.norm(true)
        if norm > 0:
            assert error == pytest.approx(distance / norm)
        else:
            assert error == (np.inf if distance > 0 else 0.0)


def test_positions_beyond_the_tokens_and_negative_counts_are_refused():
    weights = np.full((1, 4), 0.25)
    for beyond in (4, 5):
        with pytest.raises(InvalidInputError, match=f"got {beyond}; wanted at most 3"):
            metrics.attention_mass(weights, np.array([[0, beyond]]))
    with pytest.raises(InvalidInputError, match="got -1; wanted 0 or more"):
        metrics.top_tokens(weights, -1)


@given(weights, positions)
def test_inputs_are_not_changed(weights, selected):
    before = weights.copy(), selected.copy()
    metrics.recall(selected, selected)
    metrics.attention_mass(weights, selected)
    metrics.top_tokens(weights, 3)
    metrics.output_error(weights, weights)
    np.testing.assert_array_equal(weights, before[0])
    np.testing.assert_array_equal(selected, before[1])


@given(weights.map(lambda w: np.round(w, 1)), st.integers(1, LENGTH + 3))
def test_pooling_keeps_the_largest_weight_per_column(weights, columns):
    places = metrics.pool_argmax(weights, columns)
    columns = min(columns, LENGTH)
    edges = [int(LENGTH * column / columns) for column in range(columns + 1)]
    for row, indices in zip(weights.reshape(6, -1), places.reshape(6, -1).tolist(), strict=True):
        assert indices == [max(range(*run), key=lambda place: row[place]) for run in itertools.pairwise(edges)]
