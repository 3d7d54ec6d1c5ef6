"""RetrievalAttention: its graph against loops, graph search against exact search, selections against brute force."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kvviz
from kvviz.cache.decoding import attend_selection
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods.base import LayerContext

faiss = pytest.importorskip("faiss", reason="retrieval_attention needs faiss: pip install 'kvviz[ann]'")

from kvviz.methods.retrieval_attention import KeyGraph, distinct_links, nearest_keys, projected_links  # noqa: E402  # needs faiss

CONTEXT = LayerContext(index=4, n_layers=8, n_heads=6, n_kv_heads=2, head_dim=16, scale=0.25, details=True)


def tensors(length, seed=0, heads=6, kv_heads=2, dim=16, batch=1):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, n, length, dim, generator=generator) for n in (heads, kv_heads, kv_heads))


def differently_distributed(length, seed=0, dim=32):
    """Queries [L, D] and keys [L, D] with different means and variances, as after two different projections."""
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(8, dim))
    keys = rng.normal(size=(length, 8)) @ low_rank + rng.normal(size=(length, dim)) + 3 * rng.normal(size=dim)
    queries = rng.normal(size=(length, 8)) @ rng.normal(size=(8, dim)) + 4 * rng.normal(size=dim)
    return (torch.from_numpy(array.astype(np.float32)) for array in (queries, keys))


def graph_of(queries, keys, degree=32):
    return kvviz.methods.create("retrieval_attention", degree=degree)._graph(queries, keys)


class TestWithoutFaiss:
    def test_the_error_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "faiss", None)  # as for a package that is not installed
        with pytest.raises(kvviz.errors.MissingDependencyError, match=r'pip install "kvviz\[ann\]"'):
            kvviz.methods.create("retrieval_attention")
        with pytest.raises(ImportError):
            kvviz.methods.create("retrieval_attention", preset="128k")

    def test_names_and_other_methods_need_no_faiss(self):
        code = (
            "import sys; sys.modules['faiss'] = None\nimport kvviz\n"
            "assert 'retrieval_attention' in kvviz.methods.names()\n"
            "assert 'retrieval_attention' in kvviz.methods.table()\nkvviz.methods.create('quest')"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestLinks:
    @settings(max_examples=30, derandomize=True)
    @given(st.integers(1, 40), st.integers(1, 60), st.integers(2, 12), st.integers(1, 6), st.integers(0, 99))
    def test_projection_against_a_loop(self, length, asked, count, degree, seed):
        random = np.random.default_rng(seed)
        queries, keys = random.normal(size=(asked, 8)), random.normal(size=(length, 8))
        drawn = Counter()
        for query in queries:
            best, *others = sorted(range(length), key=lambda key: -(query @ keys[key]))[:count]
            drawn.update((best, other) for other in others)
            drawn.update((other, best) for other in others)
        links = projected_links(torch.from_numpy(queries), torch.from_numpy(keys), count, degree)
        for key in range(length):
            own = sorted((target for source, target in drawn if source == key), key=lambda t: (-drawn[key, t], t))
            assert links[key].tolist() == (own + [-1] * degree)[:degree]

    def test_nearest_by_distance(self):
        keys = torch.from_numpy(np.random.default_rng(0).normal(size=(300, 8)) * np.arange(1, 9))
        distances = ((keys[:, None] - keys[None]) ** 2).sum(-1)
        assert torch.equal(nearest_keys(keys, 7), distances.argsort(1)[:, :7])

    @settings(max_examples=40, derandomize=True)
    @given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.integers(0, 99))
    def test_distinct_links_against_a_loop(self, length, width, degree, seed):
        links = np.random.default_rng(seed).integers(-1, length, (length, width))
        found = distinct_links(torch.from_numpy(links), degree).tolist()
        for key, row in enumerate(links.tolist()):
            own = [link for link in dict.fromkeys(row) if link not in (-1, key)]
            assert found[key] == (own + [-1] * degree)[:degree]


class TestKeyGraph:
    def test_a_wide_search_is_exact(self):
        queries, keys = differently_distributed(500)
        graph = graph_of(queries, keys)
        for query in queries[:20]:
            neighbors, _ = graph.search(query, 30, 500)
            assert neighbors.tolist() == (keys @ query).argsort(descending=True)[:30].tolist()
            nearest, _ = graph.search(query, 30, 500, nearest=True)
            assert nearest.tolist() == (keys - query).square().sum(1).argsort()[:30].tolist()

    @pytest.mark.parametrize("length", [1, 2, 5, 40])
    def test_all_keys_can_be_reached(self, length):
        keys = torch.ones(length, 16)
        reached, _ = graph_of(torch.ones(3, 16), keys, degree=4).search(torch.ones(16), length, 1)
        assert sorted(reached.tolist()) == list(range(length))

    def test_inserted_keys_are_found_as_often_as_built_ones(self):
        queries, keys = differently_distributed(900)
        built, grown = graph_of(queries, keys), graph_of(queries[:600], keys[:600])
        for key in keys[600:]:
            grown.insert(key, 100)
        recalls = {}
        for name, graph in (("built", built), ("grown", grown)):
            exact = [set((keys @ query).topk(30).indices.tolist()) for query in queries[::9]]
            retrieved = [set(graph.search(query, 30, 60)[0].tolist()) for query in queries[::9]]
            recalls[name] = np.mean([len(a & b) / 30 for a, b in zip(exact, retrieved, strict=True)])
        assert recalls["built"] > 0.9
        assert recalls["grown"] > recalls["built"] - 0.03
        table = grown._table()
        assert table[:, 0].tolist() == [*range(1, 900), 0], "the ring through all keys"
        assert all(len({*row} - {-1, key}) >= 16 for key, row in enumerate(table.tolist()))

    def test_its_bytes_are_those_of_the_serialized_index(self):
        queries, keys = differently_distributed(700)
        graph = graph_of(queries, keys)
        for key in keys[:50]:
            graph.insert(key, 50)
        written = len(faiss.serialize_index(graph._index))
        assert len(graph) == 750
        assert 0 <= written - graph.key_bytes - graph.link_bytes < 1000  # the index's own settings
        assert graph.key_bytes == 750 * 33 * 4

    def test_a_graph_from_queries_has_higher_recall_than_hnsw_over_keys(self):
        """The paper's claim, at equal cost: searches in a graph of keys alone miss the best keys."""
        queries, keys = differently_distributed(3000)
        held_out, exact = queries[2900:], (queries[2900:] @ keys[:2900].T).topk(50).indices
        graph = graph_of(queries[:2900], keys[:2900])
        hnsw = faiss.IndexHNSWFlat(32, 16, faiss.METRIC_INNER_PRODUCT)
        for key in keys[:2900].numpy():  # one by one, for the same graph in each run
            hnsw.add(key[None])

        def recall(retrieved):
            return np.mean([len(set(a) & set(b)) / 50 for a, b in zip(retrieved, exact.tolist(), strict=True)])

        faiss.cvar.hnsw_stats.reset()
        graph_recall = recall([graph.search(query, 50, 60)[0].tolist() for query in held_out])
        scored_keys = faiss.cvar.hnsw_stats.ndis / 100
        faiss.cvar.hnsw_stats.reset()
        wide = faiss.SearchParametersHNSW(efSearch=160)
        hnsw_recall = recall([hnsw.search(query[None], 50, params=wide)[1][0].tolist() for query in held_out.numpy()])
        assert faiss.cvar.hnsw_stats.ndis / 100 > scored_keys, "HNSW scores more keys"
        assert scored_keys < 0.4 * 2900
        assert graph_recall > 0.9
        assert graph_recall > hnsw_recall + 0.05


class TestChoice:
    def built(self, length=400, **fields):
        queries, keys, values = tensors(length, seed=3)
        method = kvviz.methods.create("retrieval_attention", **{"budget": 80, **fields})
        return method, method.build(CONTEXT, queries, keys, values), queries, keys, values

    @pytest.mark.parametrize("group", ["mean", "max", "sum", "each"])
    def test_against_brute_force(self, group):
        """With a search as wide as the prompt, each query head finds its exact top keys; then the union is ranked."""
        method, state, queries, keys, _ = self.built(group=group, search_width=400)
        query = queries[:, :, 7]
        chosen = method.select(state, query)
        assert chosen.host_part == (16, 48)
        for head in range(2):
            logits = np.array(
                [[float(query[0, 3 * head + i] @ keys[0, head, p]) for p in range(400)] for i in range(3)]
            )
            best = [sorted(range(16, 368), key=lambda p: -row[p])[:32] for row in logits]
            if group == "each":
                for i in range(3):
                    row = chosen.indices[0, 3 * head + i].tolist()
                    assert row == [*range(16), *sorted(best[i]), *range(368, 400)]
                continue
            union = sorted({p for tokens in best for p in tokens})
            shares = np.exp(logits[:, union] * 0.25)
            shares = getattr(shares / shares.sum(1, keepdims=True), group)(0)
            order = sorted(range(len(union)), key=lambda i: -shares[i])[:32]
            expected = sorted(union[i] for i in order)
            assert chosen.indices[0, head].tolist() == [*range(16), *expected, *range(368, 400)]
            assert np.allclose(chosen.scores[0, head, 16:48], [shares[union.index(p)] for p in expected], atol=1e-5)
            assert bool(chosen.scores[0, head, :16].isnan().all())

    def test_merged_host_and_device_parts_equal_one_attention(self):
        method, state, queries, keys, values = self.built()
        layer = LayerCache(CONTEXT, method)
        layer.store.append(keys, values)
        chosen = method.select(state, queries[:, :, 7])
        one_part = attend_selection(queries[:, :, 7], layer.store, replace(chosen, host_part=None), 0.25)
        two_parts = attend_selection(queries[:, :, 7], layer.store, chosen, 0.25)
        assert torch.allclose(one_part, two_parts, atol=1e-6)

    def test_tokens_that_leave_the_window_are_inserted(self):
        method, state, *_ = self.built(recent=8)
        for step in range(30):
            queries, keys, values = tensors(1, seed=step + 50)
            if step == 3:
                keys = keys * 0 + queries[:, ::3] * 9  # later steps with this query must find it
                matching_query = queries[:, :, 0]
            state = method.extend(state, queries, keys, values)
            assert [len(graph) for graph in state.graphs] == [400 + step + 1 - 16 - 8] * 2
        chosen = method.select(state, matching_query)
        assert bool((chosen.indices == 403).any(-1).all())
        assert float(chosen.scores[chosen.indices == 403].min()) > 0.1

    def test_a_step_never_scores_all_keys(self):
        queries, keys, values = tensors(4096, seed=8, heads=4, kv_heads=2, dim=32)
        context = replace(CONTEXT, n_heads=4, head_dim=32)
        method = kvviz.methods.create("retrieval_attention", budget=128, search_width=96)
        state = method.build(context, queries[:, :, :4095], keys[:, :, :4095], values[:, :, :4095])
        newest = slice(4095, 4096)
        faiss.cvar.hnsw_stats.reset()
        with FlopCounterMode(display=False) as counter:
            state = method.extend(state, queries[:, :, newest], keys[:, :, newest], values[:, :, newest])
            scored_by_insertion = faiss.cvar.hnsw_stats.ndis
            method.select(state, queries[:, :, 4095])
        scored_by_search = faiss.cvar.hnsw_stats.ndis - scored_by_insertion
        assert 0 < scored_by_insertion < 2 * 0.5 * 4048  # two graphs
        assert 0 < scored_by_search < 4 * 0.5 * 4048, f"{scored_by_search / 4 / 4048:.2f} of the keys per search"
        assert counter.get_total_flops() < 2 * 4 * 32 * 4048 * 0.1, "torch scores only the retrieved keys"
        links = faiss.cvar.hnsw_stats.nhops
        assert scored_by_search * 33 * 4 < state.read_bytes() < scored_by_search * 33 * 4 + links * 32 * 4

    def test_bytes_and_threads(self):
        threads = faiss.omp_get_max_threads()
        method, state, queries, *_ = self.built()
        method.select(state, queries[:, :, 7])
        assert faiss.omp_get_max_threads() == threads
        keys = 2 * (400 - 16 - 32) * 17 * 4
        assert state.auxiliary_bytes() == keys
        assert state.metadata_bytes() == keys + 2 * 352 * (32 * 4 + 12)
        assert 0 < state.read_bytes() < 3 * state.metadata_bytes()

    def test_a_very_short_prompt_builds_its_graph_once_tokens_leave_the_window(self):
        method, state, *_ = self.built(length=40)
        assert state.graphs == []
        for length in range(41, 120):
            queries, keys, values = tensors(1, seed=length)
            state = method.extend(state, queries, keys, values)
            assert [len(graph) for graph in state.graphs] == [length - 16 - 32] * (2 * (length > 48))
            chosen = method.select(state, queries[:, :, 0]).indices
            assert chosen.shape[-1] == min(length, method.budget)

    def test_a_later_prompt_is_indexed_too(self):
        queries, keys, values = tensors(300)
        layer = LayerCache(CONTEXT, kvviz.methods.create("retrieval_attention", budget=80))
        for turn in (slice(0, 200), slice(200, 300)):
            layer.store.append(keys[:, :, turn], values[:, :, turn])
            layer.keep_queries(queries[:, :, turn])
            layer.build()
        (state,) = layer.states
        assert [len(graph) for graph in state.graphs] == [300 - 16 - 32] * 2
        assert state.prompt_length == 300

    @pytest.mark.parametrize(
        ("field", "value"),
        [("query_links", 1), ("degree", 2), ("degree", 7), ("search_width", 0), ("build_queries", 0), ("budget", 48)],
    )
    def test_fields_out_of_range(self, field, value):
        with pytest.raises(kvviz.InvalidInputError, match=field):
            kvviz.methods.create("retrieval_attention", **{field: value})


def test_keys_in_half_precision():
    queries, keys, values = (tensor.bfloat16() for tensor in tensors(300))
    method = kvviz.methods.create("retrieval_attention", budget=64)
    state = method.build(CONTEXT, queries, keys, values)
    assert method.select(state, queries[:, :, 0]).indices.shape == (1, 2, 64)
    assert isinstance(state.graphs[0], KeyGraph)
