"""Chunked soft matching against loops over tokens and an example by hand, and the theorem on its alternating split."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.clustering import chunked_soft_matching
from kvviz.clustering.soft_matching import count_links


def round_by_loops(keys, values, degree, chunk_size, ratio):
    """Keys, values, degrees and members after one round for one head, token by token in float64."""
    length = len(keys)
    norms = np.linalg.norm(keys.astype(np.float64), axis=1, keepdims=True)
    unit = keys / np.where(norms > 0, norms, 1)
    links = []
    for start in range(0, length, chunk_size or length):
        chunk = list(range(start, min(start + (chunk_size or length), length)))
        for a in chunk[0::2]:
            if len(chunk) > 1:
                cosines = unit[chunk[1::2]] @ unit[a]
                best = int(np.argmax(cosines))  # ties go to the first
                links.append((-cosines[best], a, chunk[1::2][best]))
    merged_links = sorted(links)[: max(1, round(ratio * len(links)))]
    clusters = {token: [token] for token in range(length)}
    for _, a, b in merged_links:
        clusters[b] += clusters.pop(a)
    members = np.empty(length, int)
    for cluster, tokens in enumerate(clusters.values()):
        members[tokens] = cluster
    means = [
        np.stack([np.average(tensor[tokens], axis=0, weights=degree[tokens]) for tokens in clusters.values()])
        for tensor in (keys, values)
    ]
    return *means, np.array([degree[tokens].sum() for tokens in clusters.values()]), members


def keys_of_kind(rng, length, kind):
    """Keys whose cosines are exact multiples of 1/4 in any precision, so that ties are exact."""
    if kind == "constant":
        return np.full((length, 16), 0.25, np.float32)
    keys = np.zeros((length if kind == "various" else 3, 16), np.float32)
    for key in keys:
        key[rng.permutation(16)[:4]] = rng.choice([-1, 1], 4)
    keys = keys[rng.integers(0, len(keys), length)] if kind == "duplicates" else keys[np.arange(length) % len(keys)]
    keys[rng.random(length) < 0.1] = 0
    return keys


class TestRound:
    def test_an_example_by_hand(self):
        """Chunks of 4. Links 0→1 (cosine 1), 2→1 (0, a tie with 3), 4→5 (0.96), 6→5 (0.8); 3 of 4 are kept."""
        keys = torch.tensor([[1.0, 0], [1, 0], [0, 1], [-1, 0], [3, 4], [4, 3], [2, 0], [0, -1]])
        degree = torch.tensor([1, 1, 1, 1, 1, 2, 1, 1])
        merged = chunked_soft_matching(keys, torch.arange(8.0)[:, None], degree, chunk_size=4, ratio=0.75)
        assert merged.members.tolist() == [0, 0, 1, 2, 3, 3, 3, 4]
        assert merged.members.dtype == torch.int32
        assert merged.keys.tolist() == [[1, 0], [0, 1], [-1, 0], [3.25, 2.5], [0, -1]]  # (3,4) + 2·(4,3) + (2,0) over 4
        assert merged.values[:, 0].tolist() == [0.5, 2, 3, 5, 7]
        assert merged.degree.tolist() == [2, 1, 1, 4, 1]

    @settings(max_examples=50)
    @given(
        st.sampled_from([1, 2, 3, 63, 100, 257, 1000]),
        st.sampled_from([2, 3, 16, 33, 256, None]),
        st.sampled_from(["various", "duplicates", "periodic", "constant"]),
        st.floats(0.01, 1),
        st.integers(0, 1000),
    )
    def test_against_loops(self, length, chunk_size, kind, ratio, seed):
        rng = np.random.default_rng(seed)
        keys = np.stack([keys_of_kind(rng, length, kind) for _ in range(2)])
        values = rng.normal(size=(2, length, 5)).astype(np.float32)
        degree = rng.integers(1, 6, (2, length))
        merged = chunked_soft_matching(
            *map(torch.from_numpy, (keys, values, degree)), chunk_size=chunk_size, ratio=ratio
        )
        for head in range(2):
            expected = round_by_loops(keys[head], values[head], degree[head], chunk_size, ratio)
            assert merged.members[head].tolist() == expected[3].tolist()
            assert merged.degree[head].tolist() == expected[2].tolist()
            assert np.allclose(merged.keys[head], expected[0], atol=1e-6)
            assert np.allclose(merged.values[head], expected[1], atol=1e-5)
        links = length - merged.degree.shape[-1]
        all_links = count_links(length, chunk_size)
        assert links == (max(1, round(ratio * all_links)) if all_links else 0)

    def test_random_keys_against_loops_and_conserved_means(self):
        keys, values = torch.randn(2, 2, 2, 999, 16, generator=torch.Generator().manual_seed(0))
        degree = torch.ones(2, 2, 999, dtype=torch.int32)
        means = [tensor.mean(2) for tensor in (keys, values)]
        for ratio in (0.8, 0.6, 0.4):
            merged = chunked_soft_matching(keys, values, degree, ratio=ratio)
            for b, h in itertools.product(range(2), range(2)):
                inputs = [tensor[b, h].numpy() for tensor in (keys, values, degree)]
                expected = round_by_loops(*inputs, 256, ratio)
                assert merged.members[b, h].tolist() == expected[3].tolist()
                assert np.allclose(merged.keys[b, h], expected[0], atol=1e-5)
            keys, values, degree = merged.keys, merged.values, merged.degree
            assert (degree.sum(-1) == 999).all()
            for tensor, mean in zip((keys, values), means, strict=True):
                assert torch.allclose((tensor * degree[..., None]).sum(2) / 999, mean, atol=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_dtypes_and_unmerged_tokens_do_not_change(self, dtype):
        keys, values = torch.randn(2, 100, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
        merged = chunked_soft_matching(keys, values, torch.full((100,), 25), ratio=0.5)
        assert (merged.keys.dtype, merged.values.dtype, merged.degree.dtype) == (dtype, dtype, torch.int64)
        unmerged = (merged.degree == 25).nonzero().flatten()
        original = [merged.members.tolist().index(centroid) for centroid in unmerged.tolist()]
        assert torch.equal(merged.keys[unmerged], keys[original])  # k · 25 / 25 is not always k
        assert torch.equal(merged.values[unmerged], values[original])

    def test_the_number_of_links_at_every_length(self):
        for length, chunk_size in itertools.product(range(1, 30), [2, 3, 4, 7, 29, 64, None]):
            chunks = [min(chunk_size or length, length - start) for start in range(0, length, chunk_size or length)]
            assert count_links(length, chunk_size) == sum(len(range(0, n, 2)) for n in chunks if n > 1)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"chunk_size": 1}, "chunk_size: got 1; wanted an int >= 2"),
            ({"chunk_size": 2.0}, "chunk_size"),
            ({"ratio": 0}, r"ratio: got 0; wanted a number in \(0, 1\]"),
            ({"ratio": 1.01}, "ratio"),
            ({"ratio": float("nan")}, "ratio"),
            ({"keys": torch.ones(8)}, "keys"),
            ({"keys": torch.full((8, 2), torch.inf)}, "finite"),
            ({"keys": torch.ones(0, 2)}, "keys"),
            ({"values": torch.ones(7, 2)}, "values"),
            ({"degree": torch.ones(2, 8)}, r"degree: got \[2, 8\]; wanted shape \[8\]"),
            ({"degree": torch.zeros(8)}, "at least 1"),
        ],
    )
    def test_bad_input(self, changes, message):
        inputs = {"keys": torch.ones(8, 2), "values": torch.ones(8, 2), "degree": torch.ones(8)} | changes
        with pytest.raises(kvviz.InvalidInputError, match=f"chunked_soft_matching: .*{message}"):
            chunked_soft_matching(**inputs)


@pytest.mark.parametrize("n", range(1, 7))
def test_theorem_a1(n):
    """Of all splits of 2n tokens into halves, the alternating one has the largest similarity between the halves."""
    keys = torch.randn(2 * n, 4, generator=torch.Generator().manual_seed(0))
    members = chunked_soft_matching(keys, keys, torch.ones(2 * n), chunk_size=2 * n, ratio=1.0).members
    assert members[1::2].tolist() == list(range(n)), "if all links are merged, B remains: every second token"
    splits = np.array([np.isin(range(2 * n), half) for half in itertools.combinations(range(2 * n), n)])
    rng = np.random.default_rng(n)
    for drops in [np.eye(2 * n)[i] for i in range(2 * n)] + list(rng.exponential(size=(20, 2 * n))):
        steps = np.cumsum(drops[::-1])[::-1]  # f(i) − f(i + 1): non-negative and non-increasing
        f = np.cumsum(steps[::-1])[::-1] - 3
        similarity = f[np.abs(np.subtract.outer(range(2 * n), range(2 * n)))]
        totals = np.einsum("si,ij,sj->s", splits, similarity, ~splits)
        alternating = totals[(splits == (np.arange(2 * n) % 2 == 0)).all(1)]
        assert alternating >= totals.max() - 1e-9
