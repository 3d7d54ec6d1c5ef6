"""Multipole Attention against loops in NumPy, and against full attention where it must be exact."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import kvviz
from kvviz.cache.decoding import attend_selection
from kvviz.clustering.kmeans import initial_positions
from kvviz.methods import checks
from kvviz.methods.selection import GROUPS
from kvviz.offload.device_store import DeviceStore
from tests.methods.stepped import DIM, HEADS, LENGTHS, SCALE, context, reduced, stepped, tensors

SMALL = {"sinks": 2, "recent": 5, "max_iter": 4}


def attended(selection, queries, keys, values):
    """The step's output [1, Q, D], as a layer computes it."""
    store = DeviceStore()
    store.append(keys, values)
    return attend_selection(queries, store, selection, SCALE)


def full(queries, keys, values):
    return scaled_dot_product_attention(queries[:, :, None], keys, values, scale=SCALE, enable_gqa=True)[:, :, 0]


def estimates(queries, centroids, sizes, n_kv_heads, group):
    """S of eq. 1, reduced over the group, [R, C]; `centroids` and `sizes` per query head, a size of 0 is left out."""
    weights = np.zeros((len(queries), centroids.shape[1]))
    for head, query in enumerate(queries):
        used = sizes[head] > 0
        weight = np.where(used, np.exp(centroids[head] @ query * SCALE), 0)
        weights[head] = weight / max((sizes[head] * weight).sum(), 1e-300)
    return reduced(weights, n_kv_heads, group)


def best(scores, sizes, free, most, least=0):
    """The most clusters, the best first, that leave room for centroids; and those of the rest that get one."""
    order = [c for c in np.argsort(-scores, kind="stable") if sizes[c] > 0]
    for count in range(len(order), -1, -1):
        tokens = sum(sizes[order[:count]])
        if tokens + min(most, len(order) - count) <= free or count == least or (count == 1 and tokens <= free):
            return order[:count], order[count : count + max(free - tokens, 0)] if most else []
    raise AssertionError("no cluster fits, but none at all must")


def near(scores):
    """Whether float32 may order some of these otherwise."""
    gaps = np.diff(np.sort(scores[np.isfinite(scores) & (scores > 0)]))
    return bool(len(gaps)) and gaps.min() < 1e-5 * scores.max()


class TestStep:
    @settings(max_examples=60)
    @given(
        st.sampled_from(HEADS), st.sampled_from(LENGTHS), st.sampled_from(GROUPS), st.sampled_from((24, 60, 150)),
        st.sampled_from((1, 2)), st.sampled_from((0, 0.3, 0.5, 1)), st.sampled_from((4, 16)), st.integers(0, 1000),
    )  # fmt: skip
    def test_against_loops(self, heads, length, group, budget, levels, share, per_cluster, seed):
        fields = {"budget": budget, "group": group, "levels": levels, "exact_share": share}
        fields |= {"tokens_per_cluster": per_cluster, "clusters_per_coarse": 6}
        method, state, q, k, v = stepped("multipole", *heads, length, seed=seed, **SMALL, **fields)
        selection = method.select(state, q[:, :, -1])
        output = attended(selection, q[:, :, -1], k, v)[0].double().numpy()
        if length + 1 <= budget:
            assert selection.indices[0, 0].tolist() == list(range(length + 1))
            return
        queries, keys, values = (tensor[0].double().numpy() for tensor in (q[:, :, -1], k, v))
        shared, start, rows = heads[0] // heads[1], length - 5, selection.indices.shape[1]
        count = max(round((length - 7) / per_cluster), 1)
        wide = max(round(count / 6), 1) if levels == 2 else 0
        labels = [np.r_[-1, -1, state.labels[0, h].numpy(), [-1] * (length + 1 - start)] for h in range(heads[1])]
        parents = [state.parents[0, h].numpy() if levels == 2 else np.zeros(count, int) for h in range(heads[1])]
        inside = [[np.flatnonzero(of == c) for c in range(count)] for of in labels]
        around = [
            [np.flatnonzero((of >= 0) & (np.r_[up, -1][of] == c)) for c in range(wide)]
            for of, up in zip(labels, parents, strict=True)
        ]

        def means(tensor, members):
            """[Q, C, D]."""
            of_kv = [np.stack([t[m].mean(0) if len(m) else np.zeros(DIM) for m in of] or [np.zeros(DIM)])
                     for t, of in zip(tensor, members, strict=True)]  # fmt: skip
            return np.stack([of_kv[head // shared] for head in range(heads[0])])

        sizes = np.array([[len(m) for m in inside[head // shared]] for head in range(heads[0])])
        free = budget - 2 - 5
        room = free - math.floor(free * share)
        of_row = [row * heads[0] // rows for row in range(rows)]  # a query head of each row
        opened, coarse = [range(1)] * rows, [[]] * rows
        if levels == 2:
            wide_sizes = np.array([[len(m) for m in around[head // shared]] for head in range(heads[0])])
            scores = estimates(queries, means(keys, around), wide_sizes, heads[1], group)
            if any(map(near, scores)):
                return
            for row, head in enumerate(of_row):
                up = parents[head // shared]
                children = np.array([((up == c) & (sizes[head] > 0)).sum() for c in range(wide)])
                opened[row], coarse[row] = best(scores[row], children, room, room, least=1)
        found = [np.isin(parents[head // shared], opened[row]) for row, head in enumerate(of_row)]
        of_found = np.array([sizes[head] * found[head * rows // heads[0]] for head in range(heads[0])])
        scores = estimates(queries, means(keys, inside), of_found, heads[1], group)
        if any(map(near, scores)):
            return
        for row, head in enumerate(of_row):
            kv = head // shared
            exact, fine = best(scores[row], of_found[head], free - len(coarse[row]), room)
            alone = [0, 1, *sorted(itertools.chain(*(inside[kv][c] for c in exact))), *range(start, length + 1)]
            indices = selection.indices[0, row]
            assert indices[indices >= 0].tolist() == alone
            assert len(alone) + len(fine) + len(coarse[row]) <= budget + 1  # the decoded token waits on top
            stand_ins = {c: inside[kv][c] for c in fine} | {count + c: around[kv][c] for c in coarse[row]}
            degree = selection.merged.degree[0, row].tolist()
            assert degree == [len(stand_ins.get(c, ())) for c in range(count + wide)]
            members = selection.merged.members[0, row].numpy()
            for number, of_number in stand_ins.items():
                assert np.flatnonzero(members == number).tolist() == of_number.tolist()
            assert (members >= 0).sum() == sum(degree)
            for query_head in range(head, head + heads[0] // rows):
                weights = np.exp(keys[kv, alone] @ queries[query_head] * SCALE)
                total, sums = weights.sum(), weights @ values[kv, alone]
                for tokens in stand_ins.values():
                    one = np.exp(keys[kv, tokens].mean(0) @ queries[query_head] * SCALE)
                    total, sums = total + len(tokens) * one, sums + len(tokens) * one * values[kv, tokens].mean(0)
                np.testing.assert_allclose(output[query_head], sums / total, rtol=1e-4, atol=1e-5)

    def test_the_ranking_tells_which_clusters_were_not_found(self):
        method, state, q, k, _ = stepped("multipole", 4, 2, 1000, budget=60, **SMALL)
        selection = method.select(state, q[:, :, -1])
        ranking = method.ranking(state, q[:, :, -1], k)
        coarse = selection.merged.members >= state.sizes.shape[-1]
        assert coarse.any()
        assert ranking.scores[coarse].isneginf().all(), "a coarse centroid stands for them"
        assert ranking.exact[coarse].isfinite().all()
        assert ranking.scores[selection.groups.new_ones(1, 2, 1001, dtype=torch.bool) & ~coarse][20:].nansum() > 0


class TestExactness:
    @pytest.mark.parametrize("levels", [1, 2])
    @pytest.mark.parametrize("group", GROUPS)
    @pytest.mark.parametrize("heads", HEADS)
    def test_with_all_clusters_exact_it_is_full_attention(self, heads, group, levels):
        method, state, q, k, v = stepped("multipole", *heads, 500, budget=600, group=group, levels=levels, **SMALL)
        selection = method.choose(state, q[:, :, -1])
        assert not selection.merged.degree.any()
        torch.testing.assert_close(attended(selection, q[:, :, -1], k, v), full(q[:, :, -1], k, v))

    @pytest.mark.parametrize("levels", [1, 2])
    @pytest.mark.parametrize("heads", HEADS)
    def test_with_equal_keys_in_each_cluster_estimates_are_exact(self, heads, levels):
        def three(keys):
            return keys[:, :, :3][:, :, torch.arange(keys.shape[2]) * 7 % 3]

        fields = {"budget": 60, "levels": levels, "clusters_per_coarse": 3, "exact_share": 0.3}
        method, state, q, k, v = stepped("multipole", *heads, 480, keys=three, **SMALL, **fields)
        selection = method.select(state, q[:, :, -1])
        kept = (selection.indices >= 0).sum(-1) + selection.merged.degree.sum(-1)
        assert (kept == 481).all(), "all tokens are attended to, or in a centroid"
        assert (selection.entries <= 61).all()
        means = state.coarse_keys if levels == 2 else state.centroids
        sizes = state.coarse_sizes if levels == 2 else state.sizes
        gaps = (means[:, :, :, None] - k[:, :, None, :3]).abs().amax(-1).amin(-1)
        assert (gaps[sizes > 0] < 1e-5).all(), "each centroid is one of the three keys"
        torch.testing.assert_close(attended(selection, q[:, :, -1], k, v), full(q[:, :, -1], k, v))

    @pytest.mark.parametrize("levels", [1, 2])
    def test_centroids_stand_for_all_other_tokens_if_they_fit(self, levels):
        method, state, q, _, _ = stepped("multipole", 6, 2, 1000, budget=200, levels=levels, **SMALL)
        selection = method.select(state, q[:, :, -1])
        kept = (selection.indices >= 0).sum(-1) + selection.merged.degree.sum(-1)
        assert (kept == 1001).all()
        assert (selection.entries <= 201).all()


def lloyd(keys, centroids, iterations):
    """Labels [n] and centroids of k-means by Euclidean distance, by NumPy."""
    for _ in range(iterations):
        labels = nearest(keys, centroids)
        centroids = np.stack([
            keys[labels == c].mean(0) if (labels == c).any() else centroids[c] for c in range(len(centroids))
        ])  # fmt: skip
    return labels, centroids


def nearest(keys, centroids):
    return ((keys[:, None] - centroids) ** 2).sum(-1).argmin(-1)


class TestClusters:
    def test_blocks_and_coarse_clusters(self):
        """240 tokens in blocks of 100: the last has 140, since 40 would be less than half a block."""
        method = kvviz.methods.create("multipole", budget=128, block=100, tokens_per_cluster=10, clusters_per_coarse=4)
        _, k, v = tensors(4, 2, 10 + 240 + 64, seed=5)
        state = method.build(context(4, 2), k[:, :, :0], k, v)
        assert state.sizes.shape[-1] == 10 + 14
        for head in range(2):
            keys, values = k[0, head, 10:250].double().numpy(), v[0, head, 10:250].double().numpy()
            labels = []
            for start, stop, base in ((0, 100, 0), (100, 240, 10)):
                count = round((stop - start) / 10)
                first = initial_positions(stop - start, count, 0).numpy()
                labels += (lloyd(keys[start:stop], keys[start:stop][first], 10)[0] + base).tolist()
            assert state.labels[0, head].tolist() == labels
            means = np.stack([keys[np.array(labels) == c].mean(0) for c in range(24)])
            np.testing.assert_allclose(state.centroids[0, head], means, atol=1e-5)
            parents, _ = lloyd(means, means[initial_positions(24, 6, 0).numpy()], 10)
            assert state.parents[0, head].tolist() == parents.tolist()
            for coarse in range(6):
                inside = np.isin(labels, np.flatnonzero(parents == coarse))
                assert state.coarse_sizes[0, head, coarse] == inside.sum()
                np.testing.assert_allclose(state.coarse_keys[0, head, coarse], keys[inside].mean(0), atol=1e-5)
                np.testing.assert_allclose(state.coarse_values[0, head, coarse], values[inside].mean(0), atol=1e-5)

    @pytest.mark.parametrize(("count", "starts"), [
        (0, []), (1, [0]), (8192, [0]), (12287, [0]), (12288, [0, 8192]), (20479, [0, 8192]), (20480, [0, 8192, 16384]),
    ])  # fmt: skip
    def test_the_last_block_has_half_to_one_and_a_half_blocks(self, count, starts):
        blocks = kvviz.methods.create("multipole").blocks(count)
        assert [start for start, _ in blocks] == starts
        assert [stop for _, stop in blocks] == [*starts[1:], count][: len(starts)]

    def test_fast_updates_against_loops(self):
        """Updates of 20 tokens after a prompt of 130 in blocks of 100, until the last block is cut in two."""
        fields = {"block": 100, "tokens_per_cluster": 10, "decode_interval": 20, "budget": 60, "levels": 1, **SMALL}
        method, state, _, k, v = stepped("multipole", 4, 2, 130, **fields)
        all_keys, all_values = [k], [v]
        previous = state.labels.clone()
        for step in range(2, 90):
            q, k, v = tensors(4, 2, 1, seed=step)
            state = method.extend(state, q, k, v)
            all_keys.append(k)
            all_values.append(v)
            updates = step // 20
            assert state.clustered == 123 + 20 * updates
            if step % 20:
                assert torch.equal(state.labels, previous)
                continue
            cut = state.clustered >= 150
            assert state.block_start == (100 if cut else 0)
            for head in range(2):
                keys = torch.cat(all_keys, 2)[0, head, 2 : 2 + state.clustered].double().numpy()
                values = torch.cat(all_values, 2)[0, head, 2 : 2 + state.clustered].double().numpy()
                before, labels = previous[0, head].numpy(), state.labels[0, head].numpy()
                if updates == 2:  # 163 tokens: blocks of 100 and 63
                    first, second = keys[:100], keys[100:]
                    expected = np.r_[
                        lloyd(first, first[initial_positions(100, 10, 0).numpy()], 4)[0],
                        lloyd(second, second[initial_positions(63, 6, 0).numpy()], 4)[0] + 10,
                    ]
                else:
                    start = 100 if cut else 0
                    base = 10 if cut else 0
                    of_block, block = before[start:] - base, keys[start:]
                    old = np.stack([block[: len(of_block)][of_block == c].mean(0) for c in range(of_block.max() + 1)])
                    sizes = np.bincount(of_block)
                    new, seeds = block[-20:], initial_positions(20, 2, 0).numpy()
                    means, sizes = np.r_[old, new[seeds]], np.r_[sizes, 1, 1]
                    joining = np.delete(new, seeds, axis=0)
                    joined = nearest(joining, means)
                    means = np.stack([
                        (means[c] * sizes[c] + joining[joined == c].sum(0)) / (sizes[c] + (joined == c).sum())
                        for c in range(len(means))
                    ])  # fmt: skip
                    expected = np.r_[before[:start], nearest(block, lloyd(block, means, 3)[1]) + base]
                assert labels.tolist() == expected.tolist()
                for cluster in np.unique(labels):
                    inside = labels == cluster
                    assert state.sizes[0, head, cluster] == inside.sum()
                    np.testing.assert_allclose(state.centroids[0, head, cluster], keys[inside].mean(0), atol=1e-5)
                    np.testing.assert_allclose(state.mean_values[0, head, cluster], values[inside].mean(0), atol=1e-5)
            previous = state.labels.clone()

    def test_updates_read_the_last_block_from_the_host_and_count_it(self):
        updates = []

        class Often(kvviz.methods.get("multipole")):
            def _updated(self, state, keys, new):
                updates.append(keys.shape[2])
                return super()._updated(state, keys, new)

            def __post_init__(self):
                self.decode_interval = 16
                super().__post_init__()

        checks.CHECKS["bytes_are_counted"](Often)
        assert updates[-1] == 600 - 10 - 64 + 80
