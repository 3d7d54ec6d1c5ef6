"""All methods against the common checks, and each against an independent reference."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods import checks
from kvviz.methods.base import LayerContext, Method
from kvviz.methods.selection import take_groups, take_tokens

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=16, scale=0.25, details=True)


def random_tensors(length, seed=0, heads=6, kv_heads=2, dim=16):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((1, heads, length, dim), (1, kv_heads, length, dim), (1, kv_heads, length, dim))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize("check", checks.CHECKS)
@pytest.mark.parametrize("name", kvviz.methods.names())
def test_common_check(name, check):
    method = kvviz.methods.get(name)
    reason = method.expected_failures.get(check)
    if reason is None:
        checks.CHECKS[check](method)
    else:
        with pytest.raises(AssertionError):
            checks.CHECKS[check](method)


@pytest.mark.parametrize("name", kvviz.methods.names())
def test_expected_failures_name_checks_and_reasons(name):
    expected = kvviz.methods.get(name).expected_failures
    assert set(expected) <= set(checks.CHECKS)
    assert all(len(reason.split()) > 3 for reason in expected.values())


@pytest.mark.parametrize("name", kvviz.methods.names())
def test_a_method_is_created_from_its_config(name):
    for preset in kvviz.methods.get(name).presets:
        method = kvviz.methods.create(name, preset=preset)
        for config in (method.config, json.loads(json.dumps(method.config))):
            assert kvviz.methods.create(name, **config) == method


class TestSelection:
    def test_clusterkv_figure_8(self):
        """k0, k5 in cluster 2, k1 in cluster 0, k2..k4 in cluster 1; clusters 2 and 0 exactly fill a budget of 3."""
        sizes, offsets = torch.tensor([[[1, 3, 2]]]), torch.tensor([[[0, 1, 4, 6]]])
        order = torch.tensor([[[1, 2, 3, 4, 0, 5]]])
        scores = torch.tensor([[[0.5, 0.1, 0.9]]])
        chosen = take_groups(scores, sizes, offsets, order, 3, details=True)
        assert chosen.indices.tolist() == [[[0, 1, 5]]]
        assert chosen.groups.tolist() == [[[2, 0, 2]]]
        trimmed = take_groups(scores, sizes, offsets, order, 5)
        assert trimmed.indices.tolist() == [[[0, 1, 2, 3, 5]]], "the last cluster is trimmed to the budget"

    @settings(max_examples=60)
    @given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 50), st.integers(0, 1000))
    def test_take_groups_is_the_greedy_loop(self, length, clusters, budget, seed):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, clusters, length)
        scores = rng.integers(0, 4, clusters).astype(np.float32)  # ties on purpose
        order = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels, minlength=clusters)
        expected: list[int] = []
        for cluster in sorted(range(clusters), key=lambda c: (-scores[c], c)):
            expected += [int(p) for p in order if labels[p] == cluster][: max(budget - len(expected), 0)]
        chosen = take_groups(
            torch.tensor(scores)[None, None], torch.tensor(sizes)[None, None],
            torch.tensor(np.concatenate([[0], np.cumsum(sizes)]))[None, None], torch.tensor(order)[None, None], budget,
            details=True,
        )  # fmt: skip
        assert chosen.indices[0, 0].tolist() == sorted(expected)
        assert chosen.groups[0, 0].tolist() == [labels[p] for p in sorted(expected)]

    @settings(max_examples=80)
    @given(st.integers(1, 60), st.integers(0, 70), st.integers(1, 6), st.integers(0, 1000))
    def test_take_tokens_is_a_stable_sort(self, length, budget, distinct, seed):
        rng = np.random.default_rng(seed)
        scores = rng.choice([-np.inf, -1.5, 0.0, 2.0, 7.0, np.inf][:distinct], (2, 3, length)).astype(np.float32)
        chosen = take_tokens(torch.tensor(scores), budget, details=True)
        expected = np.sort(np.argsort(-scores, axis=-1, kind="stable")[..., :budget], axis=-1)
        assert chosen.indices.tolist() == expected.tolist()
        assert chosen.scores.tolist() == np.take_along_axis(scores, expected, -1).tolist()

    def test_take_tokens_gives_ties_to_the_earlier_token(self):
        assert take_tokens(torch.tensor([[[1.0, 2.0, 1.0, 2.0, 1.0]]]), 3).indices.tolist() == [[[0, 1, 3]]]


def test_every_docstring_says_how_generated_tokens_count():
    for name in kvviz.methods.names():
        method = kvviz.methods.get(name)
        text = " ".join((method.__doc__ or "").lower().split())
        told = "generated" in text and ("within the budget" in text or "within it" in text or "on top" in text)
        assert told or method.ignores_budget or "within the same budget" in text, name


class TestOracle:
    @pytest.mark.parametrize("group", ["mean", "max", "sum", "each"])
    def test_against_brute_force(self, group):
        queries, keys, values = random_tensors(90)
        method = kvviz.methods.create("oracle", budget=20, group=group)
        state = method.build(CONTEXT, queries[:, :, :0], keys, values)
        query = queries[:, :, -1]
        chosen = method.select(state, query).indices[0].numpy()
        logits = torch.einsum("qd,qld->ql", query[0], keys[0].repeat_interleave(3, 0)).double().numpy() * 0.25
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        if group != "each":
            weights = getattr(weights.reshape(2, 3, 90), group)(1)
        expected = np.sort(np.argsort(-weights, axis=-1)[:, :20], axis=-1)
        assert np.array_equal(chosen, expected)


class TestQuest:
    def test_against_brute_force(self):
        queries, keys, values = random_tensors(135)  # eight pages and seven tokens
        method = kvviz.methods.create("quest", budget=71, group="max")
        state = method.build(CONTEXT, queries[:, :, :0], keys, values)
        query = queries[:, :, 0]
        chosen = method.select(state, query)
        for head in range(2):
            bounds = []
            for page in range(8):
                page_keys = keys[0, head, page * 16 : page * 16 + 16]
                q = query[0, head * 3 : head * 3 + 3]
                bounds.append(torch.maximum(q * page_keys.amax(0), q * page_keys.amin(0)).sum(-1).max())
            pages = sorted(np.argsort(-np.array(bounds), kind="stable")[:3])  # 71 // 16 = 4 with the last page
            expected = [p * 16 + i for p in pages for i in range(16)] + list(range(128, 135))
            assert chosen.indices[0, head].tolist() == expected
            assert chosen.groups[0, head, :48:16].tolist() == pages
            assert torch.allclose(chosen.scores[0, head, 0], bounds[pages[0]])

    def test_the_bound_is_never_below_a_score(self):
        queries, keys, _ = random_tensors(128)
        pages = kvviz.clustering.pages.page_bounds(keys)
        bound = torch.maximum(queries[:, :2, :1] * pages.high, queries[:, :2, :1] * pages.low).sum(-1)
        exact = (queries[:, :2, :1] @ keys.transpose(-1, -2)).unflatten(-1, (8, 16)).amax(-1)[:, :, 0]
        assert bool((bound >= exact - 1e-5).all())


class TestClusterKV:
    def built(self, length=400, **fields):
        queries, keys, values = random_tensors(length)
        method = kvviz.methods.create("clusterkv", **{"budget": 64, **fields})
        return method, method.build(CONTEXT, queries[:, :, :0], keys, values), queries, keys

    def test_clusters_are_selected_by_inner_product_and_the_last_one_is_trimmed(self):
        method, state, queries, keys = self.built()
        chosen = method.select(state, queries[:, :, 7])
        for head in range(2):
            labels = {}
            for cluster in range(5):
                a, b = state.offsets[0, head, cluster : cluster + 2].tolist()
                labels |= dict.fromkeys(state.order[0, head, a:b].tolist(), cluster)
            assert sorted(labels) == list(range(16, 400)), "every token except the sinks is in one cluster"
            means = [keys[0, head, [p for p in labels if labels[p] == c]].mean(0) for c in range(5)]
            assert torch.allclose(torch.stack(means), state.centroids[0, head], atol=1e-5)
            scores = [float(queries[0, head * 3 : head * 3 + 3, 7].mean(0) @ mean) for mean in means]
            expected: list[int] = []
            for cluster in np.argsort(-np.array(scores), kind="stable"):
                expected += sorted(p for p in labels if labels[p] == cluster)[: 48 - len(expected)]
            assert chosen.indices[0, head].tolist() == [*range(16), *sorted(expected)]
            assert chosen.groups[0, head].tolist() == [-1] * 16 + [labels[p] for p in sorted(expected)]

    def test_generated_tokens_are_selected_until_they_are_clustered(self):
        method, state, _, _ = self.built(decode_interval=20, decode_clusters=2)
        for step in range(45):
            queries, keys, values = random_tensors(1, seed=step + 1)
            state = method.extend(state, queries, keys, values)
            assert state.centroids.shape[2] == 5 + 2 * (step // 20), "a step's own token is never clustered"
            pending = set(range(400 + step // 20 * 20, 401 + step))
            chosen = method.select(state, queries[:, :, 0]).indices
            assert all(pending <= set(row.tolist()) for row in chosen[0])
            assert chosen.shape[-1] == 63 + len(pending) <= 64 + method.decode_window
        assert sorted(state.order[0, 0].tolist()) == list(range(16, 440))

    def test_the_number_of_clusters(self):
        assert self.built()[1].centroids.shape[2] == 5  # 400 / 80
        assert self.built(n_clusters=30)[1].centroids.shape[2] == 30
        assert self.built(preset="official")[1].centroids.shape[2] == 384  # 400 requested, at most one per token
        assert self.built(preset="official")[0].group == "each"

    def test_building_in_a_worker_thread_gives_the_same_state(self):
        queries, keys, values = random_tensors(400)
        method = kvviz.methods.create("clusterkv", budget=64)
        direct = method.build(CONTEXT, queries[:, :, :0], keys, values)
        layer = LayerCache(CONTEXT, method)
        layer.store.append(keys, values)
        layer.build()
        (state,) = layer.states
        for name in ("centroids", "sizes", "offsets", "order"):
            assert torch.equal(getattr(direct, name), getattr(state, name))
        assert layer.build_s > 0


class TestRegistry:
    def test_names(self):
        assert set(kvviz.methods.names()) >= {"full", "oracle", "streaming_llm", "quest", "clusterkv"}
        assert all(name in kvviz.methods.table() for name in kvviz.methods.names())

    @pytest.mark.parametrize("name", kvviz.methods.names())
    def test_presets_create(self, name):
        for preset in kvviz.methods.get(name).presets:
            assert kvviz.methods.create(name, preset=preset).name == kvviz.methods.get(name).name

    def test_a_second_class_with_the_same_name_is_refused(self):
        with pytest.raises(kvviz.KVVizError, match="quest"):

            class Other(Method):
                name = "quest"

    def test_a_class_that_is_defined_again_replaces_the_first(self):
        def define():
            @dataclasses.dataclass
            class Mine(Method):
                name, title, paper, kind = "test_mine", "Mine", "none", "exact"

            return Mine

        from kvviz.methods.base import REGISTRY

        try:
            define()
            second_class = define()
            assert kvviz.methods.get("test_mine") is second_class
        finally:
            REGISTRY.pop("test_mine", None)


class TestBadInput:
    @pytest.mark.parametrize("budget", [0, -3, 1.5, 1.0, 0.0, -0.5, float("nan"), True, "many", None])
    def test_budget(self, budget):
        with pytest.raises(kvviz.InvalidInputError, match="budget"):
            kvviz.methods.create("streaming_llm", budget=budget)

    def test_a_budget_below_sinks_and_window(self):
        with pytest.raises(kvviz.InvalidInputError, match="16 sinks"):
            kvviz.methods.create("clusterkv", budget=15)
        with pytest.raises(kvviz.InvalidInputError, match="at least 48"):
            kvviz.methods.create("quest", budget=47)
        share = kvviz.methods.create("clusterkv", budget=0.1)
        with pytest.raises(kvviz.InvalidInputError, match=r"0\.1 of 100 tokens"):
            share.budget_tokens(100)
        assert share.budget_tokens(1000) == 100

    def test_unknown_names_suggest_the_nearest(self):
        with pytest.raises(kvviz.UnknownNameError, match="did you mean 'clusterkv'"):
            kvviz.methods.create("clusterkw")
        with pytest.raises(kvviz.UnknownNameError, match="one of official, paper"):
            kvviz.methods.create("clusterkv", preset="nature")
        with pytest.raises(kvviz.UnknownNameError, match="did you mean 'page_size'"):
            kvviz.methods.create("quest", pagesize=8)
        with pytest.raises(kvviz.UnknownNameError, match="group"):
            kvviz.methods.create("quest", group="median")

    @pytest.mark.parametrize(
        ("name", "field"),
        [
            ("quest", "page_size"),
            ("clusterkv", "tokens_per_cluster"),
            ("clusterkv", "n_clusters"),
            ("clusterkv", "max_iter"),
        ],
    )
    def test_fields_below_one(self, name, field):
        with pytest.raises(kvviz.InvalidInputError, match=field):
            kvviz.methods.create(name, **{field: 0})

    def test_an_unknown_metric(self):
        with pytest.raises(kvviz.UnknownNameError, match="metric"):
            kvviz.methods.create("clusterkv", metric="manhattan")
