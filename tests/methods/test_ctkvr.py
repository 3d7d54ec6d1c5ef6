"""CTkvr against a step-by-step reference, and within a layer."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.accounting import ledger_of
from kvviz.cache.layer_cache import LayerCache
from kvviz.clustering.query_centroids import CHOICES, centroid_positions
from kvviz.methods.base import LayerContext
from kvviz.methods.ctkvr import CTkvr

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=8, scale=0.5, details=True)
GROUPS = ("max", "mean", "sum", "each")


def tensors(length, seed=0, context=CONTEXT, batch=1):
    generator = torch.Generator().manual_seed(seed)
    heads = (context.n_heads, context.n_kv_heads, context.n_kv_heads)
    return tuple(torch.randn(batch, count, length, context.head_dim, generator=generator) for count in heads)


def built(length=200, context=CONTEXT, **fields):
    method = CTkvr(**{"budget": 40, "sinks": 4, "recent": 8, **fields})
    queries, keys, values = tensors(length, context=context)
    return method, method.build(context, queries, keys, values), (queries, keys, values)


def step(method, state, seed, context=CONTEXT):
    queries, keys, values = tensors(1, seed=1000 + seed, context=context)
    state = method.extend(state, queries, keys, values)
    return state, method.select(state, queries[:, :, 0]), (queries, keys, values)


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def reduced(weights, group):
    """[Q][N] -> [R][N]; two KV heads."""
    weights = np.asarray(weights)
    return weights if group == "each" else getattr(weights.reshape(2, -1, weights.shape[-1]), group)(axis=1)


@pytest.mark.parametrize(("first", "second", "pads"), [(8, 5, True), (8, 500, False), (500, 5, False)])
def test_a_new_list_replaces_the_oldest_one_whole(first, second, pads):
    """What the replaced list had does not stay behind a shorter one, and a longer one is cut at its end."""
    method, state, _ = built(n_centroids=4)
    others, width = state.lists[:, :, 1:].clone(), state.lists.shape[-1]
    parts = [torch.arange(length).add(start).expand(1, 2, -1) for start, length in ((1000, first), (2000, second))]
    queries, keys, values = tensors(1)
    state.newest = [torch.zeros(1, 6, 8), *parts]
    state = method.extend(state, queries, keys, values)
    expected = [*range(1000, 1000 + first), *range(2000, 2000 + second), *[-1] * width][:width]
    assert (expected[-1] == -1) == pads
    assert state.lists[0, :, 0].tolist() == [expected, expected]
    assert torch.equal(state.lists[:, :, 1:], others)


class Reference:
    """The paper's two algorithms in float64, one selection head, one centroid and one token at a time."""

    def __init__(self, method, queries, keys, softcap=None):
        self.softcap = softcap
        self.method, self.keys = method, keys[0].double().numpy()
        self.prompt = queries.shape[2]
        self.room = method.budget - method.sinks - method.recent
        self.rows = 6 if method.group == "each" else 2
        self.centroids = []  # (number, directions [Q, D], lists [R]), the oldest first
        prompt_queries = queries[0].double().numpy()
        for number, position in enumerate(centroid_positions(self.prompt, method.n_centroids, method.choice).tolist()):
            query = prompt_queries[:, position]
            shares = reduced([self.weights(head, query[head], slice(None)) for head in range(6)], method.group)
            candidates = range(method.sinks, self.prompt - method.recent)
            length = min(math.floor(method.list_ratio * self.room), len(candidates))
            lists = [sorted(candidates, key=lambda key, row=row: -row[key])[:length] for row in shares]
            self.centroids.append((number, query / np.linalg.norm(query, axis=-1, keepdims=True), lists))
        self.length, self.added = length, len(self.centroids)

    def weights(self, head, query, tokens):
        logits = self.keys[head // 3, tokens] @ query * 0.5
        return softmax(logits if self.softcap is None else self.softcap * np.tanh(logits / self.softcap))

    def step(self, query, key):
        """(tokens, numbers of their centroids, α) per selection head; then the update."""
        method, query = self.method, query[0].double().numpy()
        self.keys = np.concatenate([self.keys, key[0].double().numpy()], axis=1)
        total = self.keys.shape[1]
        window = method.recent + (total - self.prompt if method.generated == "on_top" else 0)
        directions = query / np.linalg.norm(query, axis=-1, keepdims=True)
        cosines = [[directions[head] @ centroid[head] for _, centroid, _ in self.centroids] for head in range(6)]
        cosines = reduced(cosines, method.group)
        outcome, lists = [], []
        for row in range(self.rows):
            probed = [self.centroids[place] for place in np.argsort(-cosines[row])[: method.n_probes]]
            entries = [(key, number) for number, _, keys in probed for key in keys[row]]
            if not method.rerank:
                ranks = [(rank, number, keys[row]) for rank in range(self.length) for number, _, keys in probed]
                entries = [(keys[rank], number) for rank, number, keys in ranks if rank < len(keys)]
            centroid_of = {}
            for key, number in entries:
                if key < total - window:
                    centroid_of.setdefault(key, number)
            ordered = list(centroid_of)
            if method.rerank:
                heads = [row] if self.rows == 6 else [3 * row, 3 * row + 1, 3 * row + 2]
                shares = [self.weights(head, query[head], ordered) for head in heads]
                score = getattr(np.array(shares), "max" if self.rows == 6 else method.group)(axis=0)
                ordered = [ordered[place] for place in np.argsort(-score)]
            recent = range(total - 1, total - window - 1, -1) if method.generated == "within" else ()
            lists.append([*recent, *ordered][: self.length])
            chosen = sorted(ordered[: self.room])
            outcome.append((chosen, [centroid_of[key] for key in chosen], len(centroid_of) / self.length / len(probed)))
        if method.update:
            self.centroids = [*self.centroids[1:], (self.added, directions, lists)]
            self.added += 1
        return outcome


class TestAgainstTheReference:
    @pytest.mark.parametrize(
        "fields",
        [
            *({"group": group} for group in GROUPS),
            *({"choice": choice} for choice in CHOICES),
            *({"rerank": False, "group": group} for group in GROUPS),
            {"update": None},
            {"n_probes": 1},
            {"softcap": 2.0},
            {"list_ratio": 1.0, "n_probes": 9},
            {"list_ratio": 0.4},
            {"generated": "on_top"},
            {"generated": "on_top", "rerank": False},
        ],
        ids=str,
    )
    def test_every_step(self, fields):
        """25 steps with 9 centroids, so that each centroid is replaced more than twice, and tokens leave the window."""
        fields = {"n_centroids": 9, "n_probes": 3, "softcap": None, **fields}
        softcap = fields.pop("softcap")
        context = dataclasses.replace(CONTEXT, softcap=softcap)
        method, state, (queries, keys, _) = built(context=context, **fields)
        reference, found = Reference(method, queries, keys, softcap), False
        for number in range(25):
            state, selection, (query, key, _) = step(method, state, number)
            expected = reference.step(query[:, :, 0], key)
            start = 192 if method.generated == "on_top" else 193 + number
            inside = slice(*selection.host_part)
            for row, (tokens, centroids, _) in enumerate(expected):
                chosen_tokens = [token for token in selection.indices[0, row].tolist() if token >= 0]
                assert chosen_tokens == [*range(4), *tokens, *range(start, 201 + number)]
                groups = selection.groups[0, row, inside]
                assert groups[groups >= 0].tolist() == centroids
                assert len(tokens) <= 28
                found = found or any(token >= 200 for token in tokens)
            alpha = np.mean([share for *_, share in expected])
            assert state.deduplication[number] == pytest.approx(alpha)
        assert len(state.deduplication) == 25
        assert found == (method.update is not None and method.generated == "within"), "generated tokens are found again"
        assert state.replaced == (24 if method.update else 0)

    def test_scores_are_softmax_weights_of_the_union(self):
        """If all tokens are candidates, the scores of a row are the largest softmax weights over all tokens."""
        method, state, _ = built(list_ratio=1000)
        state, selection, (queries, _, _) = step(method, state, 0)
        keys = state.tokens.keys[0, :, 4:192].double()
        for row in range(2):
            weights = (keys[row] @ queries[0, 3 * row : 3 * row + 3, 0].double().T * 0.5).softmax(0).amax(-1)
            expected = weights.sort(descending=True).values[:28]
            scores = selection.scores[0, row]
            assert torch.allclose(scores[4:32].sort(descending=True).values.double(), expected, rtol=1e-5)
            assert bool(torch.isnan(scores[:4]).all())
            assert bool(torch.isnan(scores[32:]).all())


class TestWholeUnion:
    FIELDS: ClassVar = {"rerank": False, "attends": "union", "n_centroids": 9, "n_probes": 3}

    @pytest.mark.parametrize("group", GROUPS)
    def test_every_step_attends_to_the_whole_union(self, group):
        """12 steps against the reference, whose room then is that of all probed lists."""
        method, state, (queries, keys, _) = built(group=group, **self.FIELDS)
        reference = Reference(method, queries, keys)
        reference.room = 3 * reference.length
        beyond = 0
        for number in range(12):
            state, selection, (query, key, _) = step(method, state, number)
            for row, (tokens, *_) in enumerate(reference.step(query[:, :, 0], key)):
                attended = [token for token in selection.indices[0, row].tolist() if token >= 0]
                assert attended == [*range(4), *tokens, *range(193 + number, 201 + number)]
                beyond = max(beyond, len(attended) - method.budget)
        assert 0 < beyond <= method.extra_tokens(200) == 3 * 70 - 28, "ρ' is 28, ρ is 70"

    def test_the_ledger_counts_the_union(self):
        counts = {}
        for attends in ("budget", "union"):
            layer = LayerCache(CONTEXT, CTkvr(budget=40, sinks=4, recent=8, **self.FIELDS | {"attends": attends}))
            queries, keys, values = tensors(200)
            layer.store.append(keys, values)
            layer.keep_queries(queries)
            layer.build()
            queries, keys, values = tensors(1, seed=9)
            layer.store.append(keys, values)
            layer.decode(queries[:, :, 0])
            counts[attends] = ledger_of([layer], ()).attended
            assert counts[attends] == (layer.last.indices >= 0).sum(-1).double().mean()
        assert counts["budget"] == 40 < counts["union"]

    def test_the_budget_is_the_default_and_a_union_has_no_reranking(self):
        assert CTkvr(budget=200).extra_tokens(1000) == 0
        with pytest.raises(kvviz.InvalidInputError, match="rerank=False"):
            CTkvr(budget=200, attends="union")


class TestExactness:
    def test_all_centroids_and_whole_lists_are_the_oracle(self):
        """With one query head per KV head, the softmax over the union and over all keys give the same ranking."""
        context = dataclasses.replace(CONTEXT, n_kv_heads=6)
        fields = {"budget": 40, "sinks": 4, "recent": 8, "group": "max"}
        whole = {"list_ratio": 1000, "n_probes": 200, "n_centroids": 200, "update": None, "generated": "on_top"}
        method, state, prompt_tensors = built(context=context, **whole)
        oracle = kvviz.methods.create("oracle", **{**fields, "budget": 41, "recent": 9})  # 8 and the newest token
        exact = oracle.build(context, prompt_tensors[0][:, :, :0], *prompt_tensors[1:])
        queries, keys, values = tensors(1, seed=5, context=context)
        state, exact = method.extend(state, queries, keys, values), oracle.extend(exact, queries, keys, values)
        chosen = method.select(state, queries[:, :, 0])
        assert torch.equal(chosen.indices, oracle.select(exact, queries[:, :, 0]).indices)

    @pytest.mark.parametrize("group", GROUPS)
    def test_grouped_heads(self, group):
        method, state, _ = built(list_ratio=1000, n_probes=200, n_centroids=200, group=group, update=None)
        for number in range(3):
            state, selection, (queries, _, _) = step(method, state, number)
            keys = state.tokens.keys[0, :, 4:192].double().numpy()
            shares = reduced(
                [softmax(keys[head // 3] @ queries[0, head, 0].double().numpy() * 0.5) for head in range(6)], group
            )
            for row, weights in enumerate(shares):
                assert selection.indices[0, row, 4:32].tolist() == sorted(np.argsort(-weights)[:28] + 4)
            assert state.deduplication[-1] == pytest.approx(1 / 200), "188 distinct tokens among 200 times 188"


class TestLayer:
    def layer(self, length=200, **fields):
        method = CTkvr(**{"budget": 40, "sinks": 4, "recent": 8, **fields})
        layer = LayerCache(CONTEXT, method)
        queries, keys, values = tensors(length)
        layer.store.append(keys, values)
        layer.keep_queries(queries)
        layer.build()
        return layer

    @pytest.mark.parametrize(
        "fields", [{}, {"group": "each"}, {"choice": "init", "causal": True, "n_centroids": 9}], ids=str
    )
    def test_merged_parts_equal_attention_over_the_union(self, fields):
        """Host part and device part, merged by log-sum-exp, against one softmax over the union in float64.

        With "init" and a causal index the nine centroids list at most five keys, so the selection has pads.
        """
        layer = self.layer(**fields)
        assert layer.method.update == "fifo"
        for number in range(12):
            queries, keys, values = tensors(1, seed=number + 1)
            layer.store.append(keys, values)
            output = layer.decode(queries[:, :, 0])
            selection = layer.last
            assert selection.host_part == (4, 32)
            assert selection.padded == ("causal" in fields) == bool((selection.indices < 0).any())
            rows = selection.indices.shape[1]
            for head in range(6):
                positions = [key for key in selection.indices[0, head * rows // 6].tolist() if key >= 0]
                logits = layer.store.keys[0, head // 3, positions].double() @ queries[0, head, 0].double() * 0.5
                expected = logits.softmax(0) @ layer.store.values[0, head // 3, positions].double()
                assert torch.allclose(output[0, head].double(), expected, atol=1e-5)

    def test_empty_lists(self):
        """Causal centroids within the sinks list no key: only sinks and recent tokens are selected."""
        layer = self.layer(choice="init", causal=True, n_centroids=3, update=None)
        queries, keys, values = tensors(1, seed=3)
        layer.store.append(keys, values)
        output = layer.decode(queries[:, :, 0])
        assert layer.last.indices[0, 0].tolist() == [*range(4), *[-1] * 28, *range(193, 201)]
        assert bool(torch.isfinite(output).all())
        assert layer.states[0].deduplication == [0.0]

    def test_deduplication_is_read_from_the_states(self):
        layer = self.layer()
        assert layer.states[0].deduplication == []
        for number in range(5):
            queries, keys, values = tensors(1, seed=number)
            layer.store.append(keys, values)
            layer.decode(queries[:, :, 0])
        shares = layer.states[0].deduplication
        assert len(shares) == 5
        assert all(0.25 <= alpha <= 1 for alpha in shares), "four lists: a quarter if they are equal"

    def test_a_later_prompt_is_indexed_with_its_own_queries(self):
        layer = self.layer(n_centroids=5)
        queries, keys, values = tensors(1, seed=77)
        layer.store.append(keys, values)
        layer.decode(queries[:, :, 0])
        later = tensors(30, seed=78)
        layer.store.append(*later[1:])
        layer.keep_queries(later[0])
        layer.build()
        (state,) = layer.states
        assert state.length == state.prompt_length == 231
        expected = torch.nn.functional.normalize(later[0][:, :, -5:], dim=-1)
        assert torch.allclose(state.centroids, expected)

    def test_bytes(self):
        layer = self.layer(update=None)
        (state,) = layer.states
        assert state.metadata_bytes() == 12 * (6 * 8 * 4 + 2 * 70 * 4)  # 200 // 16 centroids, lists of 2.5 · 28
        queries, keys, values = tensors(1, seed=1)
        layer.store.append(keys, values)
        layer.decode(queries[:, :, 0])
        recalled = round(state.deduplication[0] * 2 * 4 * 70)
        assert state.read_bytes() == 12 * 6 * 8 * 4 + 2 * 4 * 70 * 4 + recalled * 8 * 4


class TestUpdate:
    def test_the_oldest_centroid_is_replaced_first(self):
        method, state, _ = built(n_centroids=4)
        first = state.centroids.clone()
        for number in range(9):
            state, _, (queries, _, _) = step(method, state, number)
            kept = [remaining for remaining in range(4) if remaining >= number]
            assert torch.equal(state.centroids[:, :, kept], first[:, :, kept])
            newest = torch.nn.functional.normalize(queries[:, :, 0], dim=-1)
            state = method.extend(state, *(tensor[:, :, :0] for tensor in tensors(1)))
            assert torch.allclose(state.centroids[:, :, number % 4], newest)
            assert state.replaced == number + 1

    def test_selecting_twice_in_a_step_updates_once(self):
        method, state, _ = built()
        state, once, (queries, _, _) = step(method, state, 0)
        twice = method.select(state, queries[:, :, 0])
        assert torch.equal(once.indices, twice.indices)
        state, _, _ = step(method, state, 1)
        assert state.replaced == 1

    def test_without_updates_nothing_changes(self):
        method, state, _ = built(update=None)
        centroids, lists = state.centroids.clone(), state.lists.clone()
        for number in range(5):
            state, _, _ = step(method, state, number)
        assert torch.equal(state.centroids, centroids)
        assert torch.equal(state.lists, lists)
