"""Metrics of token importance against torch, scikit-learn, Python loops and random draws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import hypergeom
from sklearn.linear_model import LinearRegression

from kvviz import metrics
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.methods.attention import attention_weights as by_torch

some_weights = arrays(np.float32, (2, 3, 13), elements=st.sampled_from([0.0, 0.1, 0.25, 0.5]))


def tensors(heads, per_head, length, dimensions=8, seed=0):
    rng = np.random.default_rng(seed)
    queries = rng.normal(size=(heads * per_head, length, dimensions)).astype(np.float16)
    return queries, rng.normal(size=(heads, length, dimensions)).astype(np.float16)


@pytest.mark.parametrize(("heads", "per_head"), [(1, 1), (1, 4), (3, 3), (4, 1)])
def test_attention_weights_give_the_outputs_of_torchs_attention(heads, per_head):
    queries, keys = tensors(heads, per_head, 37)
    positions = np.array([36, 0, 5, 20])
    weights = metrics.attention_weights(queries, keys, positions, group="each")
    assert weights.dtype == np.float32
    # With unit vectors as values, the output of attention is the weights.
    repeated = torch.from_numpy(keys).float().repeat_interleave(per_head, 0)
    values = torch.eye(37).expand(heads * per_head, 37, 37)
    exact = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(queries).float(), repeated, values, is_causal=True
    )
    np.testing.assert_allclose(weights, exact[:, positions].numpy(), atol=2e-6)
    mean = metrics.attention_weights(queries, keys, positions)
    np.testing.assert_allclose(mean, weights.reshape(heads, per_head, 4, 37).mean(1), atol=1e-7)
    np.testing.assert_array_equal(weights == 0, np.broadcast_to(np.arange(37) > positions[:, None], weights.shape))


def test_attention_weights_use_scale_and_softcap():
    queries, keys = tensors(2, 2, 20)
    arguments = {"scale": 0.7, "softcap": 1.5}
    weights = metrics.attention_weights(queries, keys, np.array([19]), group="each", **arguments)[:, 0]
    exact = by_torch(torch.from_numpy(queries[None, :, 19]), torch.from_numpy(keys[None]), **arguments)[0]
    np.testing.assert_allclose(weights, exact.numpy(), atol=1e-6)


def test_large_logits_do_not_overflow():
    queries, keys = tensors(1, 1, 9)
    weights = metrics.attention_weights(queries * 100, keys * 100, np.arange(9))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)


@given(some_weights)
def test_tokens_with_a_rank_below_b_are_the_top_b(weights):
    ranks = metrics.token_ranks(weights)
    for row, rank in zip(weights.reshape(-1, 13), ranks.reshape(-1, 13), strict=True):
        expected = sorted(range(13), key=lambda place: (-row[place], place))
        assert [expected.index(place) for place in range(13)] == rank.tolist()
    for count in (1, 5, 13):
        np.testing.assert_array_equal(ranks < count, metrics.member_mask(metrics.top_tokens(weights, count), 13))


@given(some_weights, st.integers(1, 13))
def test_top_kept_is_the_overlap_with_the_first_step(weights, count):
    kept = metrics.top_kept(metrics.token_ranks(weights), count)
    tops = metrics.top_tokens(weights, count)
    expected = [[len({*top.tolist()} & {*row[0].tolist()}) / count for top in row] for row in tops]
    np.testing.assert_allclose(kept, expected)
    assert (kept[:, 0] == 1).all()


def test_drifting_tokens_finds_the_drifting_tokens():
    rng = np.random.default_rng(0)
    steps, length = 16, 200
    weights = rng.uniform(0.1, 0.2, size=(steps, length))
    weights[:, 7] = 10  # always first, does not drift
    weights[:, 50] = np.geomspace(0.01, 5, steps)
    weights[:, 60] = np.geomspace(5, 0.01, steps)
    weights[:, 70] = np.where(np.arange(steps) % 2, 6, 0.01)
    ranks = metrics.token_ranks(weights)
    assert metrics.drifting_tokens(ranks, 4) == {"rises": 50, "falls": 60, "fluctuates": 70}


@pytest.mark.parametrize("ranks", [np.zeros((4, 3), int), np.tile(np.arange(9), (2, 1))])
def test_drifting_tokens_are_three_even_if_nothing_drifts(ranks):
    assert len(set(metrics.drifting_tokens(ranks, 1).values())) == 3


@given(some_weights, st.integers(0, 13), st.integers(1, 20))
def test_page_fragmentation_equals_a_loop(weights, count, page_size):
    important = metrics.top_tokens(weights, count)
    padded = np.concatenate([important, np.full((2, 3, 2), -1)], -1)
    pages = metrics.page_fragmentation(padded, 13, page_size)
    pooled = []
    for row in itertools.product(range(2), range(3)):
        page_of = [position // page_size for position in important[row].tolist()]
        counts = [page_of.count(page) for page in range(math.ceil(13 / page_size))]
        fetched = sum(len(range(page * page_size, min((page + 1) * page_size, 13))) for page in set(page_of))
        assert pages.counts[row].tolist() == counts
        assert pages.pages[row] == len(set(page_of))
        assert pages.least[row] == math.ceil(count / page_size)
        assert pages.wasted[row] == pytest.approx(1 - count / fetched if count else 0)
        pooled += [number for number in counts if number]
    assert pages.tokens_per_page.tolist() == pooled


@pytest.mark.parametrize(("important", "length", "page_size"), [(12, 48, 8), (64, 1904, 16), (3, 3, 2), (1, 9, 9)])
def test_random_page_counts_are_hypergeometric(important, length, page_size):
    shares = hypergeom.pmf(np.arange(1, page_size + 1), length, important, page_size)
    expected = metrics.random_page_counts(important, length, page_size)
    np.testing.assert_allclose(expected, shares / shares.sum(), rtol=1e-8)


def test_random_page_counts_equal_random_draws():
    rng = np.random.default_rng(0)
    order = rng.random((20_000, 48)).argsort(-1)[:, :12]
    drawn = metrics.page_fragmentation(order, 48, 8).tokens_per_page
    np.testing.assert_allclose(
        np.bincount(drawn, minlength=9)[1:] / len(drawn), metrics.random_page_counts(12, 48, 8), atol=0.004
    )


def test_sorted_mass_and_the_tokens_that_hold_it():
    weights = np.array([[0.1, 0.4, 0.2, 0.3], [0, 0, 8, 0]])  # rows need not sum to 1
    ordered, held = metrics.sorted_mass(weights)
    np.testing.assert_allclose(ordered, [[0.4, 0.3, 0.2, 0.1], [8, 0, 0, 0]])
    np.testing.assert_allclose(held, [[0.4, 0.7, 0.9, 1], [1, 1, 1, 1]])
    for share, counts in ((0.39, [1, 1]), (0.5, [2, 1]), (0.71, [3, 1]), (1, [4, 1])):
        assert metrics.tokens_for_mass(weights, share).tolist() == counts


@given(some_weights.filter(lambda weights: weights.any(-1).all()), st.floats(0.01, 1))
def test_no_smaller_set_of_tokens_holds_the_share(weights, share):
    for row, count in zip(weights.reshape(-1, 13), metrics.tokens_for_mass(weights, share).ravel(), strict=True):
        values = np.sort(row.astype(np.float64))[::-1]
        assert values[:count].sum() >= share * values.sum() * (1 - 1e-12)
        assert values[: count - 1].sum() < share * values.sum() * (1 + 1e-12)


def test_power_law_is_scikit_learns_weighted_regression():
    rng = np.random.default_rng(0)
    values = np.sort(rng.lognormal(sigma=2, size=500))[::-1]
    for first, last in ((1, 500), (3, 200), (1, 3)):
        law = metrics.power_law(values, first=first, last=last)
        ranks = np.arange(first, last + 1)
        x, y = np.log(ranks)[:, None], np.log(values[first - 1 : last])
        line = LinearRegression().fit(x, y, sample_weight=1 / ranks)
        assert law.exponent == pytest.approx(-line.coef_[0])
        assert law.r_squared == pytest.approx(line.score(x, y, sample_weight=1 / ranks))
        np.testing.assert_allclose(np.log(law.at(ranks)), line.predict(x))
        assert (law.first, law.last) == (first, last)


def test_power_law_finds_a_law_and_a_constant():
    law = metrics.power_law(3 * np.arange(1, 100) ** -1.25)
    assert (law.exponent, law.factor, law.r_squared) == pytest.approx((1.25, 3, 1))
    flat = metrics.power_law(np.full(5, 2.0))
    assert (flat.exponent, flat.factor) == pytest.approx((0, 2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.attention_weights(np.zeros((2, 4, 3)), np.zeros((2, 5, 3)), [0]), r"keys \[2, 5, 3\]"),
        (lambda: metrics.attention_weights(np.zeros((3, 4, 3)), np.zeros((2, 4, 3)), [0]), "multiple of H"),
        (lambda: metrics.attention_weights(np.zeros((1, 4, 3)), np.zeros((2, 4, 3)), [0]), "multiple of H"),
        (lambda: metrics.attention_weights(np.zeros((1, 4, 3)), np.zeros((1, 4, 3)), [4]), "0 to 3"),
        (lambda: metrics.attention_weights(np.zeros((1, 4, 3)), np.zeros((1, 4, 3)), [-1]), "0 to 3"),
        (lambda: metrics.attention_weights(np.zeros((1, 4, 3)), np.zeros((1, 4, 3)), [0.5]), "integers"),
        (lambda: metrics.attention_weights(np.zeros((1, 4, 3)), np.full((1, 4, 3), np.nan), [1]), "finite"),
        (lambda: metrics.token_ranks([np.nan, 1]), "token_ranks: weights"),
        (lambda: metrics.top_kept(np.zeros((2, 5), int), 6), "top_kept: count"),
        (lambda: metrics.top_kept(np.zeros(5, int), 1), "top_kept: count"),
        (lambda: metrics.drifting_tokens(np.zeros((1, 5), int)), "T >= 2"),
        (lambda: metrics.drifting_tokens(np.zeros((4, 2), int)), "L >= 3"),
        (lambda: metrics.page_fragmentation([1, 2], 3, 0), "page_size: got 0"),
        (lambda: metrics.page_fragmentation([1, 3], 3, 2), "positions: got 3"),
        (lambda: metrics.random_page_counts(5, 4, 2), "5 important of 4"),
        (lambda: metrics.sorted_mass([0.5, -0.1]), "negative"),
        (lambda: metrics.sorted_mass([[1.0], [0.0]]), "a row of zeros"),
        (lambda: metrics.tokens_for_mass([1.0], 0), "share: got 0"),
        (lambda: metrics.power_law([1.0, 0.5]), "at least 3 ranks"),
        (lambda: metrics.power_law([1.0, 0.5, 0.1], first=0), "at least 3 ranks"),
        (lambda: metrics.power_law([1.0, 0.5, 0.0]), "values above 0"),
    ],
)
def test_invalid_input_is_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_an_unknown_reduction_over_the_group_is_refused():
    with pytest.raises(UnknownNameError, match="group: got 'max'"):
        metrics.attention_weights(np.zeros((1, 4, 3)), np.zeros((1, 4, 3)), [0], group="max")
