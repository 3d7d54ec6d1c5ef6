"""Similarity of keys and queries against the definitions, in plain Python or by scikit-learn and scipy."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import linregress
from sklearn.metrics.pairwise import cosine_similarity

from kvviz import metrics
from kvviz.errors import InvalidInputError


def smooth_walk(shape, seed=0, step=0.4):
    """Vectors [..., L, D] around a common mean, similar to their neighbours, like keys."""
    rng = np.random.default_rng(seed)
    walk = 1.0 + np.cumsum(rng.normal(size=shape) * step, axis=-2)
    return walk.astype(np.float16)


@pytest.fixture(scope="module")
def vectors():
    array = smooth_walk((2, 3, 37, 8))
    array[0, 1, 5] = 0.0  # a zero vector has no direction
    return array


@pytest.mark.parametrize("size", [1, 10, 36, 37, 256])
def test_similarity_map_is_the_mean_cosine_of_two_blocks(vectors, size):
    similarity = metrics.similarity_map(vectors, size)
    count = min(size, 37)
    edges = [int(37 * block / count) for block in range(count + 1)]
    assert similarity.shape == (2, 3, count, count)
    assert similarity.dtype == np.float32
    for place in np.ndindex(2, 3):
        cosines = cosine_similarity(vectors[place].astype(np.float64))
        for row, column in itertools.product(range(count), repeat=2):
            block = cosines[edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
            assert similarity[place][row, column] == pytest.approx(block.mean(), abs=1e-5)


def test_similarity_by_distance_counts_every_pair(vectors):
    distances = np.array([1, 2, 7, 36])
    curve = metrics.similarity_by_distance(vectors, distances, quantiles=(0.25, 0.6))
    assert curve.distances.tolist() == [1, 2, 7, 36]
    for place in np.ndindex(2, 3):
        cosines = cosine_similarity(vectors[place].astype(np.float64))
        for column, distance in enumerate(distances.tolist()):
            pairs = np.diagonal(cosines, distance)
            expected = pairs.mean(), np.quantile(pairs, 0.25), np.quantile(pairs, 0.6)
            measured = curve.mean[place][column], curve.low[place][column], curve.high[place][column]
            np.testing.assert_allclose(measured, expected, atol=1e-5)


@pytest.mark.parametrize("length", [2, 3, 100, 8192])
def test_default_distances_rise_from_1_to_half_the_length(length):
    distances = metrics.log_distances(length)
    assert (distances[0], distances[-1]) == (1, max(length // 2, 1))
    assert (np.diff(distances) > 0).all()
    assert len(distances) <= 48


def test_memory_does_not_grow_with_the_squared_length():
    vectors = smooth_walk((1, 8192, 8))
    tracemalloc.start()
    metrics.similarity_map(vectors, 64)
    metrics.similarity_by_distance(vectors, np.array([1, 64, 4096]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * vectors.size * 4  # a few copies of the vectors; a map of all pairs would take 268 MB


def test_topk_overlap_compares_the_keys_that_both_queries_see():
    queries, keys = smooth_walk((6, 80, 8), 1), smooth_walk((2, 80, 8), 2)
    pairs = metrics.topk_overlap(queries, keys, 9, pairs=150, seed=3)
    assert set(pairs.head.tolist()) == set(range(6))
    assert (pairs.first >= 40).all()
    assert ((pairs.second > pairs.first) & (pairs.second < 80) & (pairs.second - pairs.first <= 40)).all()
    assert (pairs.second - pairs.first == 1).mean() > 0.1  # near pairs are as frequent as far ones
    for head, first, second, cosine, overlap in zip(*pairs, strict=True):
        both = queries[head, [first, second]].astype(np.float64)
        scores = both @ keys[head // 3, : first + 1].astype(np.float64).T
        top_first, top_second = (set(sorted(range(first + 1), key=lambda key: -row[key])[:9]) for row in scores)
        assert overlap == pytest.approx(len(top_first & top_second) / 9)
        assert cosine == pytest.approx(cosine_similarity(both)[0, 1])
    again = metrics.topk_overlap(queries, keys, 9, pairs=150, seed=3)
    assert all(np.array_equal(before, after) for before, after in zip(pairs, again, strict=True))
    other_seed = metrics.topk_overlap(queries, keys, 9, pairs=150, seed=4)
    assert not np.array_equal(pairs.first, other_seed.first)


def unit(array):
    return array / np.linalg.norm(array, axis=-1, keepdims=True)


@pytest.mark.parametrize("lengths", ["unit", "any"])
def test_theorem_1_counts_the_pairs_that_may_change_order(lengths):
    rng = np.random.default_rng(5)
    query, keys = rng.normal(size=6), rng.normal(size=(40, 6))
    keys = unit(keys) if lengths == "unit" else keys
    scores, norms = keys @ unit(query), np.linalg.norm(keys, axis=-1)
    cosines = 1 - np.geomspace(1e-11, 2, 40)
    bounds = metrics.overlap_bound(query, keys, 12, cosines)
    for cosine, bound in zip(cosines, bounds, strict=True):
        reach = 2 * np.sin(np.arccos(cosine) / 2)
        inversions = sum(
            abs(scores[x] - scores[y]) <= reach * (norms[x] + norms[y]) for x, y in itertools.combinations(range(40), 2)
        )
        assert bound == pytest.approx(max(1 - int(inversions**0.5) / 12, 0))
    assert {0.0, 1.0} < set(bounds.tolist())  # from no guarantee to a full one


def test_the_papers_angle_guarantees_the_papers_overlap():
    rng = np.random.default_rng(6)
    query, keys, k, share = rng.normal(size=6), unit(rng.normal(size=(60, 6))), 20, 0.7
    scores = keys @ unit(query)
    gaps = sorted(abs(scores[x] - scores[y]) for x, y in itertools.combinations(range(60), 2))
    angle = 2 * np.arcsin(gaps[int(k**2 * (1 - share) ** 2) - 1] / 4)  # d_(t), t = K²(1 − p)²
    assert metrics.overlap_bound(query, keys, k, np.cos(0.999 * angle)) >= share


def test_the_sharper_bound_is_the_most_keys_that_can_all_be_exchanged():
    rng = np.random.default_rng(7)
    query, keys = rng.normal(size=4), rng.normal(size=(9, 4))
    scores, norms = keys @ unit(query), np.linalg.norm(keys - keys.mean(0), axis=-1)
    best = sorted(range(9), key=lambda key: -scores[key])[:4]
    rest = [key for key in range(9) if key not in best]
    losses = set()
    for cosine in 1 - np.geomspace(1e-5, 1, 15):
        reach = np.sqrt(2 - 2 * cosine)
        lost = max(
            count
            for count in range(5)
            for leaving in itertools.combinations(best, count)
            for joining in itertools.combinations(rest, count)
            if all(scores[x] - scores[y] <= reach * (norms[x] + norms[y]) for x in leaving for y in joining)
        )
        bound = metrics.overlap_bound(query, keys, 4, cosine, sharp=True)
        assert bound == pytest.approx(1 - lost / 4)
        assert bound >= metrics.overlap_bound(query, keys, 4, cosine)
        losses.add(lost)
    assert len(losses) >= 4


def test_the_sharper_bound_is_never_lower_and_both_are_bounds():
    """In a plane only two queries are at a cosine, so that the smallest overlap is known."""
    rng = np.random.default_rng(11)
    sharper = 0
    for _ in range(3000):
        count = int(rng.integers(2, 12))
        k, angle = int(rng.integers(1, count + 1)), np.pi * rng.uniform() ** 6
        query, keys = rng.normal(size=2), rng.normal(size=(count, 2)) * rng.choice([0.02, 1, 5], size=(count, 1))
        keys += rng.choice([0, 4]) * rng.normal(size=2)
        published = metrics.overlap_bound(query, keys, k, np.cos(angle))
        sharp = metrics.overlap_bound(query, keys, k, np.cos(angle), sharp=True)
        best = set(metrics.top_tokens(keys @ query, k).tolist())
        for turn in (angle, -angle):
            turned = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]) @ query
            overlap = len(best & set(metrics.top_tokens(keys @ turned, k).tolist())) / k
            assert published <= sharp <= overlap + 1e-12
        sharper += sharp > published
    assert sharper > 100


@pytest.mark.parametrize("sharp", [False, True])
def test_no_turned_query_falls_below_the_bound(sharp):
    rng = np.random.default_rng(8)
    query, keys, k = unit(rng.normal(size=3)), rng.normal(size=(30, 3)) + 3.0, 15
    best = set(metrics.top_tokens(keys @ query, k).tolist())
    results = []
    for gap in np.geomspace(1e-8, 1e-1, 300):
        orthogonal = rng.normal(size=3)
        orthogonal = unit(orthogonal - (orthogonal @ query) * query)
        turned = (1 - gap) * query + np.sqrt(1 - (1 - gap) ** 2) * orthogonal
        overlap = len(best & set(metrics.top_tokens(keys @ turned, k).tolist())) / k
        bound = metrics.overlap_bound(query, keys, k, 1 - gap, sharp=sharp)
        assert overlap >= bound - 1e-12
        results.append((overlap, float(bound)))
    assert any(overlap < 1 and bound > 0 for overlap, bound in results) == sharp  # only the sharper bound is that close
    assert any(bound > 0 for _, bound in results)


def test_convex_fit_is_the_constrained_least_squares_curve():
    rng = np.random.default_rng(9)
    distances = np.array([1, 2, 3, 5, 9, 17, 20])
    curves = 1 / distances + rng.normal(size=(2, 2, 7)) * 0.1
    fit = metrics.convex_fit(distances, curves)
    slopes = np.diff(fit.values) / np.diff(distances)
    assert (slopes <= 1e-12).all()
    assert (np.diff(slopes) >= -1e-12).all()

    def shape(values):
        slopes = np.diff(values) / np.diff(distances)
        return np.concatenate([np.diff(slopes), -slopes[-1:]])

    for place in np.ndindex(2, 2):
        best = minimize(
            lambda values, curve=curves[place]: ((values - curve) ** 2).sum(), np.zeros(7), method="SLSQP",
            constraints={"type": "ineq", "fun": shape}, options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        assert best.success
        np.testing.assert_allclose(fit.values[place], best.x, atol=1e-5)
        error = np.sqrt(np.mean((curves[place] - best.x) ** 2))
        assert fit.error[place] == pytest.approx(error, rel=1e-4)
        assert fit.explained[place] == pytest.approx(1 - error**2 / curves[place].var(), rel=1e-4)


def test_convex_fit_recognises_the_claimed_shape():
    distances = np.arange(1, 257)
    convex, rising, concave = metrics.convex_fit(
        distances, np.stack([distances**-0.3, np.log(distances), 1 - (distances / 256.0) ** 4])
    )[2]
    assert convex == pytest.approx(1.0)
    assert rising == pytest.approx(0.0, abs=1e-9)
    assert 0.3 < concave < 0.9  # it falls, which a straight line explains in part
    assert metrics.convex_fit(distances, np.full(256, 0.5))[1:] == (0.0, 1.0)


def test_linear_fit_equals_scipy():
    rng = np.random.default_rng(10)
    x = rng.normal(size=50)
    y = 2 * x + rng.normal(size=50)
    reference = linregress(x, y)
    np.testing.assert_allclose(metrics.linear_fit(x, y), (reference.slope, reference.intercept, reference.rvalue))
    flat = metrics.linear_fit(np.ones(3), [1.0, 2.0, 6.0])
    assert flat[:2] == (0.0, 3.0)
    assert np.isnan(flat.correlation)


def test_invalid_input_is_refused():
    vectors, nan = np.ones((2, 8, 4)), np.full((8, 4), np.nan)
    for call, message in (
        (lambda: metrics.similarity_map(vectors, 0), "size: got 0; wanted at least 1"),
        (lambda: metrics.similarity_map(np.ones(4)), r"vectors: got \[4\]"),
        (lambda: metrics.similarity_map(nan), "NaN or infinity"),
        (lambda: metrics.similarity_by_distance(vectors[:, :1]), "L >= 2"),
        (lambda: metrics.similarity_by_distance(vectors, [8]), "from 1 to 7"),
        (lambda: metrics.similarity_by_distance(vectors, [0]), "from 1 to 7"),
        (lambda: metrics.similarity_by_distance(vectors, [1.5]), "whole numbers"),
        (lambda: metrics.similarity_by_distance(vectors, quantiles=(0.9, 0.1)), "quantiles"),
        (lambda: metrics.topk_overlap(np.ones((3, 8, 4)), vectors, 2), "Q a multiple of H"),
        (lambda: metrics.topk_overlap(vectors, vectors, 5), "k from 1 to 4"),
        (lambda: metrics.topk_overlap(vectors, vectors, 2, pairs=0), "pairs: got 0"),
        (lambda: metrics.topk_overlap(vectors * np.inf, vectors, 2), "queries: got NaN or infinity"),
        (lambda: metrics.overlap_bound(np.zeros(4), vectors[0], 2, 0.5), "not zero"),
        (lambda: metrics.overlap_bound(np.ones(4), vectors[0], 9, 0.5), "1 to 8"),
        (lambda: metrics.overlap_bound(np.ones(4), vectors[0], 2, 1.5), "−1 to 1"),
        (lambda: metrics.overlap_bound(np.ones(4), vectors[0], 2, np.nan), "−1 to 1"),
        (lambda: metrics.convex_fit([1, 1, 2], [1, 1, 1]), "at least 3, increasing"),
        (lambda: metrics.convex_fit([1, 2, 3], [1, np.nan, 1]), "not finite"),
        (lambda: metrics.linear_fit([1], [1]), "at least 2 finite points"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()
