"""CTkvr's claims on random and real queries: lemmas 1 and 2, theorem 1 (arXiv 2512.15550, appendix A)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz


def inversions(first, second):
    """Number of pairs that `first` and `second` order differently, without ties."""
    return int(((first[:, None] > first) & (second[:, None] < second)).sum())


def top(scores, count):
    return set(np.argsort(-scores, kind="stable")[:count].tolist())


def threshold_angle(scores, count, share):
    """Theorem 1's θ = 2·arcsin(d_(t) / 4): d_(t) is the t-th smallest difference of two scores, t = K²(1 − p)²."""
    rank = math.ceil(count**2 * (1 - share) ** 2)
    differences = np.abs(scores[:, None] - scores)[np.triu_indices(len(scores), 1)]
    return 2 * math.asin(np.partition(differences, rank - 1)[rank - 1] / 4)


def rotated(vector, toward, angle):
    """Unit vector `vector`, rotated by `angle` towards another unit vector."""
    side = toward - (toward @ vector) * vector
    return math.cos(angle) * vector + math.sin(angle) * side / np.linalg.norm(side)


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def real(lm, prose):
    """Unit queries [Q, L, D] and keys [H, L, D] of one layer of SmolLM2, in float64."""
    trace = kvviz.capture(lm, prose, layers=(15,), max_tokens=400)
    return unit(trace.queries[15].astype(np.float64)), unit(trace.keys[15].astype(np.float64))


def assert_lemma_2(first, second, keys):
    """Assert that Q1·K1 − Q1·K2 > 4·sin(θ/2), θ between Q1 and Q2, implies Q2·K1 >= Q2·K2; return how often."""
    angle = math.acos(np.clip(first @ second, -1, 1))
    apart = (keys @ first)[:, None] - keys @ first > 4 * math.sin(angle / 2) + 1e-12
    assert ((keys @ second)[:, None] - keys @ second)[apart].min(initial=0) >= -1e-12
    return int(apart.sum())


def assert_theorem_1(first, second, keys, count, share):
    """Assert that below the threshold angle, both share more than p of their top K keys; False above the angle."""
    angle = math.acos(np.clip(first @ second, -1, 1))
    if angle >= threshold_angle(keys @ first, count, share):
        return False
    assert len(top(keys @ first, count) & top(keys @ second, count)) > share * count
    return True


class TestClaims:
    @settings(max_examples=100)
    @given(st.permutations(range(12)), st.integers(1, 12))
    def test_lemma_1(self, order, count):
        """If two orders of the same elements have t inversions, their first m differ in at most √t elements."""
        first, second = -np.arange(12.0), -np.array(order, dtype=float)
        assert len(top(first, count) - top(second, count)) <= math.isqrt(inversions(first, second))

    @settings(max_examples=100)
    @given(st.integers(0, 10_000), st.integers(2, 6), st.floats(1e-3, 0.4))
    def test_lemma_2_on_random_vectors(self, seed, dim, angle):
        rng = np.random.default_rng(seed)
        query, other, *keys = unit(rng.normal(size=(42, dim)))
        near = rotated(query, other, angle)
        assert math.isclose(math.acos(np.clip(query @ near, -1, 1)), angle, rel_tol=1e-6)
        assert_lemma_2(query, near, np.array(keys))

    def test_lemma_2_cannot_be_sharpened(self):
        """Two keys along ±(Q1 − Q2), with δ below 4·sin(θ/2), θ between Q1 and Q2: their order is reversed."""
        angle = 0.3
        first, second = (
            np.array([math.cos(angle / 2), math.sin(angle / 2)]),
            np.array([math.cos(angle / 2), -math.sin(angle / 2)]),
        )
        keys = np.array([[0.0, 1.0], [0.0, -1.0]])
        delta = first @ keys[0] - first @ keys[1]
        assert delta == pytest.approx(2 * math.sin(angle / 2))
        assert delta < 4 * math.sin(angle / 2)
        assert second @ keys[0] < second @ keys[1]

    @settings(max_examples=100)
    @given(st.integers(0, 10_000), st.integers(5, 20), st.floats(0, 0.9), st.floats(0.1, 0.99))
    def test_theorem_1_on_random_vectors(self, seed, count, share, angle_share):
        rng = np.random.default_rng(seed)
        query, other, *keys = unit(rng.normal(size=(82, 6)))
        keys = np.array(keys)
        angle = angle_share * threshold_angle(keys @ query, count, share)
        assert assert_theorem_1(query, rotated(query, other, angle), keys, count, share)

    @pytest.mark.model
    def test_lemma_2_on_real_queries(self, real):
        """Pairs of queries at most 8 tokens apart. The lemma must apply to some pairs of keys to say anything."""
        queries, keys = real
        covered = sum(
            assert_lemma_2(queries[head, at], queries[head, at - distance], keys[head // 3])
            for head in range(9) for at in range(80, 400, 80) for distance in (1, 8)
        )  # fmt: skip
        assert covered > 0

    @pytest.mark.model
    def test_theorem_1_on_real_queries(self, real):
        """The theorem holds below its threshold angle, but no two queries of the text are that close.

        It is about unit keys, ranked by cosine; attention ranks by inner product.
        """
        queries, keys = real
        covered = []
        for head in range(9):
            for at in range(80, 400, 40):
                query, previous = queries[head, at], queries[head, at - 1]
                covered.append(assert_theorem_1(query, previous, keys[head // 3], 50, 0.5))
                angle = 0.99 * threshold_angle(keys[head // 3] @ query, 50, 0.5)
                assert assert_theorem_1(query, rotated(query, previous, angle), keys[head // 3], 50, 0.5)
        assert not any(covered)

    @pytest.mark.model
    def test_near_queries_share_their_top_keys(self, real):
        """Observation 2: over pairs of real queries, cosine and top-key overlap correlate."""
        queries, keys = real
        rng = np.random.default_rng(0)
        for head in range(0, 9, 3):
            pairs = rng.integers(0, 400, (400, 2))
            cosines = (queries[head, pairs[:, 0]] * queries[head, pairs[:, 1]]).sum(-1)
            scores = queries[head] @ keys[head // 3].T
            overlaps = [len(top(scores[a], 50) & top(scores[b], 50)) / 50 for a, b in pairs]
            assert np.corrcoef(cosines, overlaps)[0, 1] > 0.5
