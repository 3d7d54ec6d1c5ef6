"""The query-centroid index against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvviz_kernels.inverted_file import naive
from torch.utils._python_dispatch import TorchDispatchMode

import kvviz
from kvviz.clustering import query_centroids as exported
from kvviz.clustering.query_centroids import (
    CHOICES,
    QueryCentroidIndex,
    best_first,
    centroid_positions,
    query_centroids,
    union_of_lists,
)

GROUPS = ("max", "mean", "sum", "each")
KEYS = ("random", "duplicated", "constant", "zero")


def tensors(heads, group, length, dim=8, kind="random", seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(batch, heads * group, length, dim, generator=generator)
    keys = torch.randn(batch, heads, length, dim, generator=generator)
    if kind == "duplicated":
        keys = keys[:, :, torch.arange(length) % 5 if length > 5 else torch.arange(length)]
    elif kind != "random":
        keys = torch.full_like(keys, 0.0 if kind == "zero" else 1.0)
    return queries, keys


def by_hand(queries, keys, position, group, *, causal=False, softcap=None):
    """Reduced weights [R][L] of the centroid at `position` over all keys, one query head at a time in float64."""
    heads, kv_heads = queries.shape[1], keys.shape[1]
    ratio, rows = heads // kv_heads, []
    for head in range(heads):
        logits = keys[0, head // ratio].double().numpy() @ queries[0, head, position].double().numpy()
        logits = logits / math.sqrt(queries.shape[-1])
        if softcap is not None:
            logits = softcap * np.tanh(logits / softcap)
        if causal:
            logits[position + 1 :] = -np.inf
        weights = np.exp(logits - logits.max())
        rows.append(weights / weights.sum())
    if group == "each":
        return rows
    return [getattr(np.array(rows[head * ratio : head * ratio + ratio]), group)(axis=0) for head in range(kv_heads)]


class TestIndex:
    @pytest.mark.parametrize("choice", CHOICES)
    @pytest.mark.parametrize("group", GROUPS)
    def test_lists_of_a_small_prompt(self, group, choice):
        queries, keys = tensors(2, 3, 60)
        index = query_centroids(
            queries, keys, n_centroids=7, list_length=11, group=group, choice=choice, within=(4, 52), softcap=3.0
        )
        rows = 6 if group == "each" else 2
        assert (index.lists.shape, index.lists.dtype) == ((1, rows, 7, 11), torch.int32)
        assert torch.equal(index.centroids, queries[:, :, index.positions])
        for number, position in enumerate(index.positions.tolist()):
            for row, weights in enumerate(by_hand(queries, keys, position, group, softcap=3.0)):
                expected = sorted(range(4, 52), key=lambda key, own=weights: -own[key])[:11]
                assert index.lists[0, row, number].tolist() == expected

    @settings(max_examples=60)
    @given(
        heads=st.integers(1, 3), ratio=st.integers(1, 4), length=st.sampled_from([1, 2, 17, 63, 100]),
        kind=st.sampled_from(KEYS), group=st.sampled_from(GROUPS), choice=st.sampled_from(CHOICES),
        causal=st.booleans(), seed=st.integers(0, 99), data=st.data(),
    )  # fmt: skip
    def test_lists_hold_the_keys_of_largest_weight(self, heads, ratio, length, kind, group, choice, causal, seed, data):
        queries, keys = tensors(heads, ratio, length, kind=kind, seed=seed)
        start = data.draw(st.integers(0, length - 1))
        stop = data.draw(st.integers(start + 1, length))
        count, entries = data.draw(st.integers(1, length)), data.draw(st.integers(1, stop - start))
        index = query_centroids(
            queries, keys, n_centroids=count, list_length=entries, group=group, choice=choice, within=(start, stop),
            causal=causal, seed=seed,
        )  # fmt: skip
        assert len(set(index.positions.tolist())) == count
        for number in {0, count // 2, count - 1}:
            position = int(index.positions[number])
            visible = range(start, min(stop, position + 1) if causal else stop)
            for row, weights in enumerate(by_hand(queries, keys, position, group, causal=causal)):
                listed = index.lists[0, row, number].tolist()
                real = [key for key in listed if key >= 0]
                assert listed == real + [-1] * (entries - len(real)), "pads come last"
                assert len(real) == min(entries, len(visible)) == len(set(real)), "as many distinct keys as possible"
                assert set(real) <= set(visible)
                best = sorted((weights[key] for key in visible), reverse=True)[: len(real)]
                np.testing.assert_allclose([weights[key] for key in real], best, rtol=1e-4, atol=1e-9)

    @pytest.mark.parametrize("kind", ["constant", "zero"])
    def test_equal_keys_are_listed_in_order(self, kind):
        queries, keys = tensors(2, 2, 300, kind=kind)
        index = query_centroids(queries, keys, n_centroids=5, list_length=40, within=(10, 290))
        assert torch.equal(index.lists, torch.arange(10, 50).expand_as(index.lists).int())

    @pytest.mark.parametrize("causal", [False, True])
    @pytest.mark.parametrize("kind", KEYS)
    def test_a_shorter_list_is_the_beginning_of_a_longer_one(self, kind, causal):
        queries, keys = tensors(2, 3, 90, kind=kind)
        longest = query_centroids(queries, keys, n_centroids=60, list_length=90, causal=causal).lists
        for length in (1, 7, 44, 45, 89):
            shorter = query_centroids(queries, keys, n_centroids=60, list_length=length, causal=causal).lists
            assert torch.equal(shorter, longest[..., :length])

    def test_lists_do_not_depend_on_the_batch_or_the_blocks(self, monkeypatch):
        queries, keys = tensors(2, 3, 500, batch=3)
        together = query_centroids(queries, keys, n_centroids=64, list_length=50)
        alone = query_centroids(queries[1:2], keys[1:2], n_centroids=64, list_length=50)
        assert torch.equal(together.lists[1:2], alone.lists)
        monkeypatch.setattr(naive, "BLOCK_ELEMENTS", 1)
        assert torch.equal(query_centroids(queries, keys, n_centroids=64, list_length=50).lists, together.lists)

    def test_leading_dimensions_and_half_precision(self):
        queries, keys = tensors(2, 3, 100, batch=4)
        whole = query_centroids(queries, keys, n_centroids=10, list_length=20)
        unbatched = query_centroids(queries[0], keys[0], n_centroids=10, list_length=20)
        assert torch.equal(unbatched.lists, whole.lists[0])
        nested = query_centroids(
            queries.view(2, 2, 6, 100, 8), keys.view(2, 2, 2, 100, 8), n_centroids=10, list_length=20
        )
        assert torch.equal(nested.lists.flatten(0, 1), whole.lists)
        half = query_centroids(queries.half(), keys.half(), n_centroids=10, list_length=20)
        in_float32 = query_centroids(queries.half().float(), keys.half().float(), n_centroids=10, list_length=20)
        assert half.centroids.dtype == torch.float16
        assert torch.equal(half.lists, in_float32.lists)

    def test_memory_is_limited_to_blocks(self, monkeypatch):
        """No tensor has more elements than a block or the inputs. All weights at once would be 6·500·2000."""
        monkeypatch.setattr(naive, "BLOCK_ELEMENTS", 2**17)
        queries, keys = tensors(2, 3, 2000)
        largest = 0

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                nonlocal largest
                result = func(*args, **(kwargs or {}))
                for tensor in result if isinstance(result, tuple) else (result,):
                    largest = max(largest, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
                return result

        with Watch():
            query_centroids(queries, keys, n_centroids=500, list_length=64)
        assert largest <= max(2**17, queries.numel(), 2 * 500 * 64)

    def test_is_exported(self):
        assert exported is query_centroids
        assert kvviz.clustering.QueryCentroidIndex is QueryCentroidIndex

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"n_centroids": 0}, "n_centroids: got 0; wanted 1 to 30"),
            ({"n_centroids": 31}, "n_centroids: got 31; wanted 1 to 30"),
            ({"list_length": 0}, "list_length: got 0; wanted 1 to 30"),
            ({"list_length": 31}, "list_length: got 31; wanted 1 to 30"),
            ({"list_length": 9, "within": (2, 10)}, "list_length: got 9; wanted 1 to 8"),
            ({"within": (4, 4)}, "within"),
            ({"within": (0, 31)}, "within"),
            ({"within": (-1, 5)}, "within"),
            ({"group": "median"}, "group"),
            ({"choice": "last"}, "choice"),
        ],
    )
    def test_refusals(self, fields, message):
        queries, keys = tensors(2, 2, 30)
        with pytest.raises(kvviz.KVVizError, match=message) as caught:
            query_centroids(queries, keys, **{"n_centroids": 4, "list_length": 5, **fields})
        assert isinstance(caught.value, kvviz.InvalidInputError | kvviz.UnknownNameError)

    def test_tensors_that_do_not_match(self):
        queries, keys = tensors(2, 2, 30)
        for wrong in ((queries[:, :3], keys), (queries[:, :, :9], keys), (queries[0], keys), (queries[..., :4], keys)):
            with pytest.raises(kvviz.InvalidInputError, match="queries and keys"):
                query_centroids(*wrong, n_centroids=4, list_length=5)
        keys[0, 1, 7, 0] = torch.nan
        with pytest.raises(kvviz.InvalidInputError, match=r"keys: got .*NaN"):
            query_centroids(queries, keys, n_centroids=4, list_length=5)


class TestPieces:
    def test_centroid_positions(self):
        assert centroid_positions(10, 4, "final").tolist() == [6, 7, 8, 9]
        assert centroid_positions(10, 4, "init").tolist() == [0, 1, 2, 3]
        assert centroid_positions(10, 4, "equidistant").tolist() == [1, 4, 6, 9]
        drawn, other = (centroid_positions(500, 40, "random", seed=seed).tolist() for seed in (0, 1))
        assert drawn == sorted(set(drawn)) == centroid_positions(500, 40, "random").tolist() != other
        assert len(drawn) == 40
        for choice in CHOICES:
            assert centroid_positions(7, 7, choice).tolist() == list(range(7))

    @settings(max_examples=80)
    @given(st.lists(st.sampled_from([-1.0, 0.0, 1e-30, 0.25, 0.5, 3.0]), min_size=1, max_size=30), st.integers(1, 40))
    def test_best_first(self, weights, count):
        expected = sorted((i for i, w in enumerate(weights) if w >= 0), key=lambda i: (-weights[i], i))[:count]
        result = best_first(torch.tensor([weights, weights]), count)
        assert result.tolist() == [expected + [-1] * (count - len(expected))] * 2

    @settings(max_examples=80)
    @given(st.integers(1, 3), st.integers(1, 12), st.integers(1, 30), st.integers(0, 1000))
    def test_union_of_lists(self, rows, entries, length, seed):
        lists = np.random.default_rng(seed).integers(-1, length, (2, rows, entries))
        union = union_of_lists(torch.tensor(lists, dtype=torch.int32), length)
        width = max(1, max(len(set(row.tolist()) - {-1}) for row in lists.reshape(-1, entries)))
        assert union.tokens.shape == union.first.shape == (2, rows, width)
        for index in np.ndindex(2, rows):
            entries_of_row = lists[index].tolist()
            expected = sorted(set(entries_of_row) - {-1})
            pads = width - len(expected)
            assert union.counts[index] == len(expected)
            assert union.tokens[index].tolist() == expected + [-1] * pads
            assert union.first[index].tolist() == [entries_of_row.index(token) for token in expected] + [0] * pads
