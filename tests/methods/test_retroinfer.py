"""RetroInfer's wave index against loops in NumPy, and against full attention where it must be exact."""

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
from kvviz.cache.decoding import attend_selection, merged_attention
from kvviz.clustering.kmeans import initial_positions
from kvviz.methods.selection import GROUPS
from kvviz.offload.device_store import DeviceStore
from tests.methods.stepped import DIM, HEADS, LENGTHS, SCALE, context, reduced, softmax, stepped, tensors

SMALL = {"sinks": 2, "recent": 5, "max_iter": 4}


def attended(selection, queries, keys, values):
    """The step's output [1, Q, D], as a layer computes it."""
    store = DeviceStore()
    store.append(keys, values)
    return attend_selection(queries, store, selection, SCALE)


def full(queries, keys, values):
    return scaled_dot_product_attention(queries[:, :, None], keys, values, scale=SCALE, enable_gqa=True)[:, :, 0]


def zones(scores, sizes, free, ratio, per_cluster):
    """The clusters to retrieve and to estimate, by trying all numbers of retrieved ones, the most first."""
    order = [c for c in np.argsort(-scores, kind="stable") if sizes[c]]
    most = math.floor(free * ratio / (ratio + per_cluster))
    for count in range(len(order), -1, -1):
        tokens = sum(sizes[order[:count]])
        if tokens + min(most, len(order) - count) <= free or (count == 1 and tokens <= free):
            return order[:count], order[count : count + free - tokens] if ratio else []
    raise AssertionError("no cluster fits, but none at all must")


class TestStep:
    @settings(max_examples=40)
    @given(
        st.sampled_from(HEADS), st.sampled_from(LENGTHS), st.sampled_from(GROUPS), st.sampled_from((24, 60)),
        st.sampled_from((0, 2.5, 232 / 18)), st.sampled_from((4, 16)), st.integers(0, 1000),
    )  # fmt: skip
    def test_against_loops(self, heads, length, group, budget, ratio, per_cluster, seed):
        fields = {"budget": budget, "group": group, "tokens_per_cluster": per_cluster, "estimated_per_retrieved": ratio}
        method, state, q, k, v = stepped("retroinfer", *heads, length, seed=seed, **SMALL, **fields)
        selection = method.select(state, q[:, :, -1])
        output = attended(selection, q[:, :, -1], k, v)[0].double().numpy()
        if length + 1 <= budget:
            assert selection.indices[0, 0].tolist() == list(range(length + 1))
            assert selection.merged is None
            return
        query, keys, values = (tensor[0].double().numpy() for tensor in (q[:, :, -1], k, v))
        shared, start = heads[0] // heads[1], length - 5  # of the window after the prompt
        labels = [
            np.r_[-1, -1, state.labels[0, head].tolist(), [-1] * (length + 1 - start)] for head in range(heads[1])
        ]
        count = max(round((length - 7) / per_cluster), 1)
        of_cluster = [[np.flatnonzero(of_head == c) for c in range(count)] for of_head in labels]
        assert all(len(np.concatenate(clusters)) == length - 7 for clusters in of_cluster)
        weights = np.zeros((heads[0], count))
        for head, cluster in itertools.product(range(heads[0]), range(count)):
            members = of_cluster[head // shared][cluster]
            centroid = keys[head // shared, members].mean(0) if len(members) else np.zeros(DIM)
            weights[head, cluster] = query[head] @ centroid * SCALE if len(members) else -np.inf
        weights = np.stack([softmax(of_head) for of_head in weights])
        for row, scores in enumerate(reduced(weights, heads[1], group)):
            kv = row * heads[1] // len(selection.indices[0])
            sizes = np.array([len(members) for members in of_cluster[kv]])
            gaps = np.diff(np.sort(scores[sizes > 0]))
            if len(gaps) and gaps.min() < 1e-6 * scores.max():
                continue  # float32 may order them otherwise
            retrieved, estimated = zones(scores, sizes, budget - 2 - 5, ratio, per_cluster)
            alone = [0, 1, *sorted(itertools.chain(*(of_cluster[kv][c] for c in retrieved))), *range(start, length + 1)]
            indices = selection.indices[0, row]
            assert indices[indices >= 0].tolist() == alone
            assert len(alone) + len(estimated) <= budget + 1  # the decoded token waits on top
            degree = selection.merged.degree[0, row].numpy()
            assert degree.tolist() == [sizes[c] if c in estimated else 0 for c in range(count)]
            members = selection.merged.members[0, row].numpy()
            assert members.tolist() == [c if c in estimated else -1 for c in labels[kv]]
            for head in range(row * heads[0] // len(selection.indices[0]), heads[0]):
                if head * len(selection.indices[0]) // heads[0] != row:
                    break
                exact = np.exp(keys[kv, alone] @ query[head] * SCALE)
                total, sums = exact.sum(), exact @ values[kv, alone]
                for cluster in estimated:  # the paper's form: the sum of the values, and s times the weight
                    inside = of_cluster[kv][cluster]
                    one = np.exp(keys[kv, inside].mean(0) @ query[head] * SCALE)
                    total, sums = total + len(inside) * one, sums + one * values[kv, inside].sum(0)
                np.testing.assert_allclose(output[head], sums / total, rtol=1e-4, atol=1e-5)

    def test_soft_capped_logits_rank_and_estimate(self):
        plain, capped = (
            stepped("retroinfer", 4, 2, 300, budget=60, softcap=softcap, **SMALL)[:3] for softcap in (None, 0.5)
        )
        method, state, q = capped
        scores = method.scores(state, q[:, :, -1])
        logits = torch.einsum("hgd,hcd->hgc", q[0, :, -1].unflatten(0, (2, 2)), state.centroids[0]) * SCALE
        expected = (0.5 * torch.tanh(logits / 0.5)).softmax(-1).sum(1)
        torch.testing.assert_close(scores[0], expected)
        assert not torch.allclose(plain[0].scores(plain[1], q[:, :, -1]), scores, atol=1e-3)


class TestExactness:
    @pytest.mark.parametrize("group", GROUPS)
    @pytest.mark.parametrize("heads", HEADS)
    def test_with_all_clusters_retrieved_it_is_full_attention(self, heads, group):
        method, state, q, k, v = stepped("retroinfer", *heads, 500, budget=600, group=group, **SMALL)
        selection = method.choose(state, q[:, :, -1])
        assert not selection.merged.degree.any()
        torch.testing.assert_close(attended(selection, q[:, :, -1], k, v), full(q[:, :, -1], k, v))

    @pytest.mark.parametrize("group", GROUPS)
    @pytest.mark.parametrize("heads", HEADS)
    def test_with_clusters_of_one_token_each_split_is_full_attention(self, heads, group):
        method, state, q, k, v = stepped("retroinfer", *heads, 300, tokens_per_cluster=1, budget=400, group=group)
        retrieved = torch.rand(method.scores(state, q[:, :, -1]).shape) < 0.3
        method.zones = lambda state, scores: (retrieved, ~retrieved)
        selection = method.choose(state, q[:, :, -1])
        assert (selection.merged.degree.sum(-1) == (~retrieved).sum(-1)).all()
        torch.testing.assert_close(attended(selection, q[:, :, -1], k, v), full(q[:, :, -1], k, v))

    @pytest.mark.parametrize("heads", HEADS)
    def test_with_equal_keys_in_each_cluster_estimates_are_exact(self, heads):
        def three(keys):
            kinds = torch.arange(keys.shape[2]) * 7 % 3
            return keys[:, :, :3][:, :, kinds]

        method, state, q, k, v = stepped("retroinfer", *heads, 480, keys=three, budget=140, sinks=2, recent=5)
        for head, cluster in itertools.product(range(heads[1]), range(state.sizes.shape[-1])):
            inside = k[0, head, method.group_tokens(state, head, cluster)]
            assert (inside == inside[:1]).all()
        selection = method.select(state, q[:, :, -1])
        kept = (selection.indices >= 0).sum(-1) + selection.merged.degree.sum(-1)
        assert (kept == 481).all(), "all tokens are attended to, or in a centroid"
        assert (selection.indices >= 0).sum() < 300 * heads[1]
        torch.testing.assert_close(attended(selection, q[:, :, -1], k, v), full(q[:, :, -1], k, v))

    def test_an_estimate_is_never_above_the_weight_of_its_tokens(self):
        method, state, q, k, _v = stepped("retroinfer", 6, 2, 400, budget=80, **SMALL)
        selection = method.select(state, q[:, :, -1])
        _, estimate = merged_attention(q[:, :, -1], selection.merged, SCALE)
        logits = torch.einsum("hgd,hld->hgl", q[0, :, -1].unflatten(0, (2, 3)), k[0]) * SCALE
        members = torch.nn.functional.pad(selection.merged.members[0], (0, 0)) >= 0
        exact = logits.masked_fill(~members[:, None], -torch.inf).logsumexp(-1).flatten()
        assert (estimate[0] <= exact + 1e-5).all()
        assert (estimate[0] > exact - 1).all()


class TestIndex:
    @staticmethod
    def spherical(keys, count, start, iterations):
        """Labels [n] of k-means with unit centroids, by NumPy."""
        centroids = keys[start]
        for _ in range(iterations):
            unit = centroids / np.linalg.norm(centroids, axis=-1, keepdims=True)
            labels = (keys @ unit.T).argmax(-1)
            centroids = np.stack([
                keys[labels == c].mean(0) if (labels == c).any() else centroids[c] for c in range(count)
            ])  # fmt: skip
        return labels, centroids

    @pytest.mark.parametrize("preset", ["paper", "official"])
    def test_segments_are_clustered_by_spherical_k_means(self, preset):
        """Lengths 100, 100 and 99 after 4 sinks and before a window of 64; keys are centred over all of them."""
        method = kvviz.methods.create("retroinfer", preset=preset, budget=128, segment=100)
        _, keys, values = tensors(4, 2, 367, seed=3)
        keys = keys + 2  # so that centring matters
        state = method.build(context(4, 2), keys[:, :, :0], keys, values)
        for head in range(2):
            raw = keys[0, head, 4:-64].double().numpy()
            middle = raw - raw.mean(0)
            expected, centroids = [], []
            for start, stop in ((0, 100), (100, 200), (200, 299)):
                first = initial_positions(stop - start, 6, 0).numpy()
                iterations = 9 if preset == "official" else 10
                labels, means = self.spherical(middle[start:stop], 6, first, iterations)
                expected += (labels + 6 * start // 100).tolist()
                centroids.append(means)
            if preset == "official":
                centroids = np.concatenate(centroids)
                expected = (middle @ (centroids / np.linalg.norm(centroids, axis=-1, keepdims=True)).T).argmax(-1)
                assert len({*(expected[:100] // 6)}) > 1, "some keys join a centroid of another segment"
            assert state.labels[0, head].tolist() == list(expected)
            for cluster in range(18):
                inside = np.flatnonzero(np.asarray(expected) == cluster)
                assert state.sizes[0, head, cluster] == len(inside)
                np.testing.assert_allclose(state.centroids[0, head, cluster], raw[inside].mean(0), atol=1e-5)
                mean = values[0, head, inside + 4].mean(0)
                np.testing.assert_allclose(state.mean_values[0, head, cluster], mean, atol=1e-5)

    def test_generated_tokens_become_a_segment_once_enough_left_the_window(self):
        fields = {"budget": 60, "decode_interval": 48, **SMALL}
        method, state, _, k, v = stepped("retroinfer", 4, 2, 100, **fields)
        centroids, keys, values = state.centroids.clone(), [k], [v]
        for step in range(2, 140):
            q, k, v = tensors(4, 2, 1, seed=step)
            state = method.extend(state, q, k, v)
            keys.append(k)
            values.append(v)
            assert state.clustered == 93 + (step // 48) * 48
            selection = method.select(state, q[:, :, 0])
            window = 100 + step - 2 - state.clustered
            assert selection.indices[0, 0, -window:].tolist() == list(range(100 + step - window, 100 + step))
            entries = (selection.indices >= 0).sum(-1) + (selection.merged.degree > 0).sum(-1)
            assert (entries <= 60 + window - 5).all()
        assert torch.equal(state.centroids[:, :, : centroids.shape[2]], centroids)
        keys, values = torch.cat(keys, dim=2), torch.cat(values, dim=2)
        assert state.centroids.shape[2] == centroids.shape[2] + 2 * 3
        for head, (segment, start) in itertools.product(range(2), enumerate((95, 143))):
            middle = keys[0, head, start : start + 48].double().numpy()
            labels, _ = self.spherical(middle - middle.mean(0), 3, initial_positions(48, 3, 0).numpy(), 4)
            of_segment = state.labels[0, head, start - 2 : start + 46] - centroids.shape[2] - 3 * segment
            assert of_segment.tolist() == labels.tolist()
            for cluster in range(3):
                place = centroids.shape[2] + 3 * segment + cluster
                inside = start + np.flatnonzero(labels == cluster)
                torch.testing.assert_close(state.centroids[0, head, place], keys[0, head, inside].mean(0))
                torch.testing.assert_close(state.mean_values[0, head, place], values[0, head, inside].mean(0))
