"""Eviction methods against their definitions as loops: on tensors, in a layer and in a model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.attachment import attention_observer
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods.eviction import union
from kvviz.methods.h2o import H2O
from tests.methods import eviction_reference as reference
from tests.methods.eviction_reference import (
    FIELDS,
    NAMES,
    SHAPES,
    close,
    context,
    feed_prompt,
    feed_token,
    rows_attended,
    session_for,
    tensors,
)
from tests.tiny_models import make, prompt


class TestAgainstTheDefinition:
    @pytest.mark.parametrize(
        ("shape", "group"), [("mha", "mean"), ("grouped", "sum"), ("grouped", "each"), ("mqa", "max"), ("mqa", "each")]
    )
    @pytest.mark.parametrize("generated", ["within", "on_top"])
    @pytest.mark.parametrize("name", NAMES)
    def test_a_session_of_three_prompts(self, name, generated, shape, group):
        """Prompts attend to the kept tokens and themselves, steps to the kept tokens, both as in the reference."""
        layer_context = context(*SHAPES[shape], softcap=2.0 if group == "max" else None)
        method = kvviz.methods.create(name, group=group, generated=generated, **FIELDS[name])
        layer, session = LayerCache(layer_context, method), session_for(method, layer_context, group)
        seed = 0
        for length, steps in ((90, 12), (35, 8), (9, 70)):
            seed += 1
            q, k, v = tensors(*SHAPES[shape], length, seed)
            assert close(feed_prompt(layer, q, k, v)[0], session.prompt(q[0], k[0], v[0])), f"prompt of {length}"
            for step in range(steps):
                seed += 1
                q, k, v = tensors(*SHAPES[shape], 1, seed)
                output, expected = feed_token(layer, q, k, v)[0], session.step(q[0, :, 0], k[0], v[0])
                assert rows_attended(layer) == session.seen, f"step {step} after the prompt of {length}"
                assert close(output, expected)

    @pytest.mark.parametrize("pooling", ["avg", "max"])
    @pytest.mark.parametrize("kernel", [1, 3, 7])
    def test_snapkv_pools_votes(self, kernel, pooling):
        q, k, v = tensors(6, 2, 120)
        method = kvviz.methods.create("snapkv", budget=50, recent=20, kernel=kernel, pooling=pooling)
        layer = context(6, 2, details=True)
        session = session_for(method, layer, "mean")
        session.prompt(q[0], k[0], v[0])
        state = method.build(layer, q, k, v)
        assert state.kept[0].tolist() == session.kept
        chosen = method.select(state, q[:, :, 0])
        assert bool(chosen.scores[..., -20:].isnan().all()), "the window is not ranked"
        weights = ((q[0, 0:3, 100:] @ k[0, 0].T) * layer.scale).double()
        weights = weights.masked_fill(torch.arange(120) > torch.arange(100, 120)[:, None], -torch.inf).softmax(-1)
        votes = weights.sum(1).mean(0)[:100]
        first = int(chosen.indices[0, 0, 0])
        near = votes[max(first - kernel // 2, 0) : first + kernel // 2 + 1]
        expected = near.max() if pooling == "max" else near.sum() / kernel
        assert float(chosen.scores[0, 0, 0]) == pytest.approx(float(expected), rel=1e-5)

    @pytest.mark.parametrize(
        ("shape", "group", "length"), [("mha", "mean", 80), ("grouped", "each", 80), ("mqa", "max", 20)]
    )
    def test_h2o_follows_the_papers_algorithm(self, shape, group, length):
        """150 steps. The layer frees memory every 64 steps and stores at most the budget and those steps."""
        budget, window = 32, 12
        heads = SHAPES[shape]
        method = kvviz.methods.create("h2o", budget=budget, recent_share=0.4, group=group)
        layer = LayerCache(context(*heads), method)
        session = reference.HeavySession(*heads, group, 0.3, lambda _: budget, lambda _: window, fixed=True)
        q, k, v = tensors(*heads, length)
        feed_prompt(layer, q, k, v)
        session.prompt(q[0], k[0], v[0])
        for step in range(150):
            q, k, v = tensors(*heads, 1, seed=step + 1)
            output, expected = feed_token(layer, q, k, v)[0], session.step(q[0, :, 0], k[0], v[0])
            assert rows_attended(layer) == session.seen, f"step {step}"
            assert close(output, expected)
            largest = budget * (heads[0] // heads[1] if group == "each" else 1)
            assert layer.store.used <= largest + 64
        assert layer.last.indices.shape[-1] == budget
        assert not layer.store.complete

    def test_a_later_prompt_does_not_attend_to_evicted_tokens_that_are_not_freed_yet(self):
        method = H2O(budget=24)
        for length in (20, 60):  # before the first free, or after it
            layer, kept = LayerCache(context(6, 2), method), []
            inputs = [tensors(6, 2, length)]
            feed_prompt(layer, *inputs[0])
            for step in range(30):
                inputs.append(tensors(6, 2, 1, seed=step + 1))
                feed_token(layer, *inputs[-1])
            kept = rows_attended(layer)
            assert all(len(row) == 24 for row in kept)
            inputs.append(tensors(6, 2, 10, seed=99))
            output = feed_prompt(layer, *inputs[-1])
            session = reference.Session(6, 2, "mean", 0.3, lambda _: 1000, lambda _: 0)
            for _, k, v in inputs[:-1]:
                session.append(k[0], v[0])
            session.kept, session.score = kept, lambda row, candidates, weights: [0.0] * len(candidates)
            assert close(output[0], session.prompt(*(t[0] for t in inputs[-1])))


class TestInAModel:
    @pytest.mark.parametrize("architecture", ["llama", "gemma2"])
    @pytest.mark.parametrize("name", NAMES)
    def test_a_conversation_follows_the_definition(self, name, architecture):
        """All attention outputs of three turns, from the model's queries, keys and values."""
        model = make(architecture)
        kvviz.attach(model)
        group = "each" if architecture == "gemma2" else "mean"
        method = kvviz.methods.create(name, group=group, **FIELDS[name])
        cache = kvviz.SelectiveCache(model, method)
        layers = {layer.context.index: layer for layer in cache.selective_layers}
        sessions: dict[int, reference.Session] = {}
        outputs: dict[int, torch.Tensor] = {}
        compared = []

        def observe(index, queries, keys, values, scale, softcap):
            if index not in layers:
                return
            if index not in sessions:
                layer_context = dataclasses.replace(layers[index].context, scale=scale, softcap=softcap)
                sessions[index] = session_for(method, layer_context, group)
            session, new = sessions[index], queries.shape[2]
            q, k, v = queries[0], keys[0, :, -new:], values[0, :, -new:]  # the last are those of this step
            outputs[index] = session.prompt(q, k, v) if new > 1 else session.step(q[:, 0], k, v)[:, None]

        def compare(index, output):
            if index in outputs:
                expected = outputs.pop(index).swapaxes(0, 1).reshape(1, output.shape[1], -1)
                assert np.allclose(output.numpy(), expected, atol=1e-4), f"layer {index}, {output.shape[1]} tokens"
                compared.append(index)

        for index, block in enumerate(model.model.layers):
            block.self_attn.o_proj.register_forward_pre_hook(lambda _, inputs, index=index: compare(index, inputs[0]))
        ids = prompt(100)
        with attention_observer(model, observe), torch.no_grad():
            for turn in range(3):
                options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
                ids = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **options)
                ids = torch.cat([ids, prompt(30, seed=turn + 5)], dim=1)
        assert len(compared) == len(layers) * 3 * 6
        assert not any(layer.store.complete for layer in layers.values())

    def test_memory_reserved_for_a_chunked_prompt_is_freed(self):
        """Memory reserved for the prompt is not allocated again while decoding."""
        model = make("llama")
        kvviz.attach(model)
        cache = kvviz.SelectiveCache(model, kvviz.methods.create("snapkv", **FIELDS["snapkv"]))
        unchunked = kvviz.SelectiveCache(model, cache.method)
        options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
        ids = prompt(400)
        cache.expect(400)
        generated = model.generate(ids, past_key_values=cache, prefill_chunk_size=128, **options)
        assert torch.equal(generated, model.generate(ids, past_key_values=unchunked, **options))
        ids = torch.cat([generated, prompt(200, seed=4)], dim=1)
        cache.expect(607)
        generated = [
            model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=c, **options, **chunks)
            for c, chunks in ((cache, {"prefill_chunk_size": 64}), (unchunked, {}))
        ]
        assert torch.equal(*generated)
        assert cache.ledger().kept_bytes == {"device": 4 * 2 * 2 * (40 + 64) * 8 * 4}


class TestPyramid:
    def test_by_hand(self):
        """Budget 256 with a window of 64: mean 192, smallest 192 / 20 = 9, largest 2 * 192 - 9 = 375."""
        method = kvviz.methods.create("pyramidkv", budget=256)
        budgets = [method.layer_budget(context(6, 2, index=i, n_layers=5), 2000) for i in range(5)]
        assert budgets == [64 + 375, 256 + 91, 256, 256 - 91, 64 + 9]
        assert [method.layer_budget(context(6, 2, index=i, n_layers=5), 300) for i in range(5)] == [
            300,
            278,
            256,
            234,
            212,
        ]
        assert method.layer_budget(context(6, 2, index=0, n_layers=1), 2000) == 256
        assert {method.layer_budget(context(6, 2, index=i, n_layers=5), 256) for i in range(5)} == {256}

    @settings(max_examples=100)
    @given(
        st.integers(1, 40),
        st.integers(0, 3),
        st.integers(20, 400),
        st.integers(1, 2000),
        st.sampled_from([1, 2.5, 20, 500]),
    )
    def test_the_mean_over_layers_is_the_budget(self, layers, dense, budget, length, beta):
        method = kvviz.methods.create("pyramidkv", budget=budget, recent=16, sinks=4, beta=beta, dense_layers=dense)
        selecting = range(dense, dense + layers)
        budgets = [method.layer_budget(context(6, 2, index=i, n_layers=dense + layers), length) for i in selecting]
        assert sum(budgets) == budget * layers
        assert budgets == sorted(budgets, reverse=True)
        assert budgets[-1] >= min(20, length)
        if budget < length:
            assert budgets[0] <= length
            smallest = max((budget - 20) // beta, 2 * (budget - 20) - (length - 20))  # the last layer, as published
            linear = np.linspace(2 * (budget - 20) - smallest, smallest, layers) + 20 if layers > 1 else [budget]
            assert np.all(np.abs(budgets - np.array(linear)) < 1)


class TestAnyPrompt:
    @settings(max_examples=60)
    @given(
        st.sampled_from(NAMES), st.sampled_from([1, 63, 100, 1000]),
        st.sampled_from(["random", "zero", "constant", "four"]),
        st.sampled_from(["mean", "max", "sum", "each"]), st.sampled_from([(4, 4), (6, 2), (3, 1)]),
        st.integers(0, 9), st.integers(1, 20), st.integers(0, 60), st.integers(0, 99),
    )  # fmt: skip
    def test_degenerate_keys(self, name, length, keys, group, heads, sinks, recent, selected, seed):
        q, k, v = tensors(*heads, length, seed)
        keys_by_kind = {
            "random": k,
            "zero": torch.zeros_like(k),
            "constant": torch.ones_like(k),
            "four": k[:, :, torch.arange(length) % 4],
        }
        budget = sinks + recent + selected
        method = kvviz.methods.create(name, budget=budget, sinks=sinks, recent=recent, group=group)
        layer = LayerCache(context(*heads), method)
        feed_prompt(layer, q, keys_by_kind[keys], v)
        for step in range(2):
            feed_token(layer, *tensors(*heads, 1, seed + step + 1))
        (state,) = layer.states
        count = min(method.step_budget(state), length + 2)
        on_top = method.generated == "on_top"
        always_kept = {*range(min(sinks, length)), *range(max(length - recent + (0 if on_top else 2), 0), length + 2)}
        for row in rows_attended(layer):
            assert row == sorted(set(row))
            assert len(row) == count
            assert always_kept <= set(row) <= set(range(length + 2))
        if name == "h2o" and keys in ("zero", "constant") and budget < length:
            # the i-th token gives weight 1 / i to each token up to it, so the sums decrease from the first token on
            window = max(recent, min(budget // 2, budget - sinks))
            expected = [*range(budget - window), *range(length + 2 - window, length + 2)]
            assert rows_attended(layer) == [expected] * len(rows_attended(layer))

    @settings(max_examples=60)
    @given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.integers(0, 999))
    def test_the_union_of_query_heads(self, heads, group, count, seed):
        rng = np.random.default_rng(seed)
        kept = [[sorted(rng.choice(20, count, replace=False).tolist()) for _ in range(heads * group)] for _ in range(2)]
        result = union(torch.tensor(kept), heads)
        for row, kept_of_row in enumerate(kept):
            for head in range(heads):
                expected = sorted(set().union(*kept_of_row[head * group : (head + 1) * group]))
                assert result[row, head].tolist() == expected + [-1] * (result.shape[-1] - len(expected))

    def test_the_union_of_padded_query_heads(self):
        kept = torch.tensor([[[3, 5, -1, 9], [5, -1, -1, 9], [-1, -1, -1, 9], [1, 2, 3, 9]]])
        assert union(kept, 2).tolist() == [[[3, 5, 9, -1], [1, 2, 3, 9]]]


class TestFields:
    @pytest.mark.parametrize(
        ("name", "fields", "match"),
        [
            ("snapkv", {"kernel": 4}, "kernel.*odd"),
            ("snapkv", {"kernel": -1}, "kernel"),
            ("snapkv", {"pooling": "mean"}, "pooling"),
            ("snapkv", {"recent": 0}, "recent"),
            ("snapkv", {"budget": 63}, "at least 64"),
            ("pyramidkv", {"beta": 0.5}, "beta"),
            ("h2o", {"recent_share": 1.5}, "recent_share"),
            ("h2o", {"budget": 4, "sinks": 4}, "at least 5"),
        ],
    )
    def test_out_of_range(self, name, fields, match):
        with pytest.raises((kvviz.InvalidInputError, kvviz.UnknownNameError), match=match):
            kvviz.methods.create(name, **fields)
