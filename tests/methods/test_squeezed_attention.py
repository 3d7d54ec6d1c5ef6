"""Squeezed Attention against loops in NumPy and scikit-learn's k-means."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from kvviz.clustering.kmeans import initial_positions
from kvviz.methods.selection import GROUPS
from tests.methods.stepped import DIM, HEADS, LENGTHS, SCALE, reduced, stepped, tensors


class TestSqueezedAttention:
    @settings(max_examples=30)
    @given(
        st.sampled_from(HEADS), st.sampled_from(LENGTHS), st.sampled_from(GROUPS), st.sampled_from((None, 0.002, 0.02)),
        st.sampled_from((0, 1, 7)), st.integers(0, 1000),
    )  # fmt: skip
    def test_against_loops(self, heads, length, group, threshold, recent, seed):
        fields = {"budget": 40, "threshold": threshold, "group": group, "sinks": 2, "recent": recent, "max_iter": 5}
        method, state, q, k, _ = stepped("squeezed_attention", *heads, length, seed=seed, **fields)
        selection = method.select(state, q[:, :, -1])
        if length + 1 <= 40:
            assert selection.indices[0, 0].tolist() == list(range(length + 1))
            return
        query, keys = q[0, :, -1].double().numpy(), k[0].double().numpy()
        shared, estimates, labels = heads[0] // heads[1], [], []
        for kv in range(heads[1]):
            bounds = state.offsets[0, kv].tolist()
            clusters = [state.order[0, kv, a:b].tolist() for a, b in pairwise(bounds)]
            window = max(recent, 1)
            assert sorted(chain.from_iterable(clusters)) == list(range(2, length + 1 - window))
            prompt = [[member for member in members if member < length - recent] for members in clusters]
            centroids = np.stack([keys[kv, members].mean(0) if members else np.zeros(DIM) for members in prompt])
            if recent:  # the decoded token moved another one out of the window
                joined = keys[kv, length - recent]
                cosines = centroids @ joined / np.linalg.norm(centroids, axis=-1).clip(1e-9) / np.linalg.norm(joined)
                assert length - recent in clusters[int(cosines.argmax())]
            labels.append(clusters)
            sizes = np.array([len(members) for members in clusters])
            for head in range(kv * shared, kv * shared + shared):
                logits = centroids @ query[head] * SCALE
                estimates.append(np.exp(logits) / (sizes * np.exp(logits)).sum())
        scores = reduced(np.stack(estimates), heads[1], group)
        assume(threshold is None or np.abs(scores - threshold).min() > 1e-4 * threshold)
        for number, estimate in enumerate(scores):
            clusters = labels[number * heads[1] // len(selection.indices[0])]
            expected: list[int] = []
            for cluster in np.argsort(-estimate, kind="stable"):
                if threshold is None or estimate[cluster] > threshold:
                    expected += sorted(clusters[cluster])[: 38 - max(recent, 1) - len(expected)]
            selected = [p for p in selection.indices[0, number].tolist() if p >= 0]
            assert selected == [0, 1, *sorted(expected), *range(length + 1 - max(recent, 1), length + 1)]

    def test_clusters_equal_those_of_scikit_learn_on_normalised_keys(self):
        _, state, _, k, _ = stepped("squeezed_attention", 4, 2, 400, budget=64, sinks=0)
        for head in range(2):
            unit = torch.nn.functional.normalize(k[0, head, :400], dim=-1).double().numpy()
            start = unit[initial_positions(400, 20, 0).numpy()]
            labels = KMeans(20, init=start, n_init=1, max_iter=50, tol=0).fit(unit).labels_
            bounds = state.offsets[0, head].tolist()
            for cluster, (a, b) in enumerate(pairwise(bounds)):
                members = np.flatnonzero(labels == cluster)
                assert state.order[0, head, a:b].tolist() == members.tolist()
                assert torch.allclose(state.centroids[0, head, cluster], k[0, head, members].mean(0), atol=1e-5)

    def test_a_threshold_above_all_scores_leaves_sinks_and_recent_tokens(self):
        method, state, q, _, _ = stepped("squeezed_attention", 4, 2, 100, budget=40, threshold=1.0)
        assert method.select(state, q[:, :, -1]).indices.tolist() == [[[0, 100]] * 2]

    def test_generated_tokens_join_the_nearest_clusters(self):
        """After 60 steps all tokens but sink and newest are in clusters; centroids stay, each order is ascending."""
        method, state, _, k, _ = stepped("squeezed_attention", 4, 2, 100, budget=40)
        centroids, keys = state.centroids.clone(), [k]
        for step in range(1, 60):
            q, k, v = tensors(4, 2, 1, seed=step)
            state = method.extend(state, q, k, v)
            keys.append(k)
        assert torch.equal(state.centroids, centroids)
        all_keys = torch.cat(keys, dim=2)
        for head in range(2):
            bounds = state.offsets[0, head].tolist()
            clusters = [state.order[0, head, a:b].tolist() for a, b in pairwise(bounds)]
            assert [len(members) for members in clusters] == state.sizes[0, head].tolist()
            assert all(members == sorted(members) for members in clusters)
            assert sorted(chain.from_iterable(clusters)) == list(range(1, 159))
            nearest = torch.cosine_similarity(all_keys[0, head, 100:159, None], centroids[0, head], dim=-1).argmax(-1)
            for token, cluster in zip(range(100, 159), nearest.tolist(), strict=True):
                assert token in clusters[cluster]

    def test_all_generated_tokens_are_selected_on_top(self):
        method, state, _, _, _ = stepped("squeezed_attention", 4, 2, 100, budget=40, generated="on_top")
        for step in range(1, 60):
            q, k, v = tensors(4, 2, 1, seed=step)
            state = method.extend(state, q, k, v)
            indices = method.select(state, q[:, :, 0]).indices
            assert indices.shape[-1] == 40 + step + 1
            window = step + 1
            assert indices[0, 0, -window:].tolist() == list(range(101 + step - window, 101 + step))
