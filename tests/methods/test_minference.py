"""MInference: the sparse prompt against a dense masked reference, and inside a model."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import kvviz
from kvviz.generation import generating as generation
from kvviz.methods.base import LayerContext
from tests.tiny_models import letters_tokenizer, make, prompt

GREEDY = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
SPARSE = {"sinks": 3, "recent": 6, "vertical": 12, "slash": 15, "last_queries": 20, "dense_length": 0}


def context(heads, kv_heads, dim=16, softcap=None):
    return LayerContext(3, 8, heads, kv_heads, dim, 0.5, softcap)


def tensors(heads, kv_heads, new, length, dim=16, seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, heads, new, dim), (batch, kv_heads, length, dim), (batch, kv_heads, length, dim))
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def best(sums, always, count, share):
    """The first `always` indices, and those of the largest other sums, `count` in all."""
    count = min(count, math.ceil(share * len(sums)))
    by_sum = sorted(range(always, len(sums)), key=lambda i: -sums[i])
    return {*range(always), *by_sum[: max(count - always, 0)]}


def reference(method, layer, queries, keys, values):
    """Output [Q, n, D] of one prompt from the full score matrix in float64, one head at a time."""
    heads, new = queries.shape[1:3]
    length = keys.shape[2]
    positions = np.arange(length - new, length)
    outputs = []
    for head in range(heads):
        q = queries[0, head].double().numpy()
        k, v = (t[0, head // (heads // keys.shape[1])].double().numpy() for t in (keys, values))
        logits = q @ k.T * layer.scale
        if layer.softcap is not None:
            logits = layer.softcap * np.tanh(logits / layer.softcap)
        logits[positions[:, None] < np.arange(length)] = -np.inf
        last = min(method.last_queries, new)
        weights = softmax(logits[new - last :])
        by_distance = np.zeros(length)
        for row, position in enumerate(positions[new - last :]):
            for key in range(position + 1):
                by_distance[position - key] += weights[row, key]
        columns = best(weights.sum(0), method.sinks, method.vertical, method.vertical_share)
        diagonals = best(by_distance, max(method.recent, 1), method.slash, method.slash_share)
        for row, position in enumerate(positions):
            excluded = [key for key in range(position + 1) if key not in columns and position - key not in diagonals]
            logits[row, excluded] = -np.inf
        outputs.append(softmax(logits) @ v)
    return np.stack(outputs)


@settings(max_examples=40, derandomize=True)
@given(
    st.integers(1, 200), st.floats(0, 1), st.sampled_from([(4, 4), (6, 2), (3, 1)]), st.sampled_from([None, 1.5]),
    st.integers(0, 8), st.integers(0, 8), st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.125, 0.25, 1.0]),
    st.integers(1, 70), st.integers(0, 99),
)  # fmt: skip
def test_against_a_masked_score_matrix(
    length, part, heads, softcap, sinks, recent, vertical, slash, share, last_queries, seed
):
    new = max(1, round(part * length))
    method = kvviz.methods.create(
        "minference", sinks=sinks, recent=recent, vertical=vertical, slash=slash, vertical_share=share,
        slash_share=share, last_queries=last_queries, dense_length=0,
    )  # fmt: skip
    layer = context(*heads, softcap=softcap)
    queries, keys, values = tensors(*heads, new, length, seed=seed)
    output = method.attend_prompt(layer, queries, keys, values)
    expected = reference(method, layer, queries, keys, values)
    assert np.allclose(output[0].numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("new", [1, 63, 64, 65, 300, 400])
@pytest.mark.parametrize("fields", [{"vertical_share": 1.0}, {"slash_share": 1.0}, {"dense_length": 400}])
def test_full_coverage_is_dense_attention(new, fields):
    method = kvviz.methods.create("minference", **{"dense_length": 0, **fields})
    queries, keys, values = tensors(6, 2, new, 400, batch=2)
    visible = torch.arange(400) <= torch.arange(400 - new, 400)[:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, attn_mask=visible, scale=0.5, enable_gqa=True
    )
    assert torch.allclose(method.attend_prompt(context(6, 2), queries, keys, values), expected, atol=1e-5)


def test_the_computed_share_matches_the_counted_flops():
    """FLOPs counted by torch: two products per score, and one per score of the estimate."""
    method = kvviz.methods.create("minference")
    queries, keys, values = tensors(6, 2, 900, 1500)
    layer = context(6, 2)
    with FlopCounterMode(display=False) as counter:
        method.attend_prompt(layer, queries, keys, values)
    flops_per_score = 2 * 16 * 6  # one product of 16 dimensions for six heads
    estimate = 64 * 1500
    scores = (counter.get_total_flops() / flops_per_score - estimate) / 2 + estimate
    causal = 900 * 600 + 900 * 901 / 2
    assert method.computed_share(layer, queries, keys) == pytest.approx(scores / causal)
    small = kvviz.methods.create("minference", vertical=60, recent=50, slash=50)
    assert small.computed_share(layer, queries, keys) <= (900 * (60 + 50 + 63) + estimate) / causal


def test_memory_grows_linearly_with_the_length():
    largest = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                largest[-1] = max(largest[-1], result.untyped_storage().nbytes())
            return result

    method = kvviz.methods.create("minference", vertical=100, slash=100)
    for length in (1000, 4000):
        inputs = tensors(3, 1, length, length)
        largest.append(0)
        with Watch():
            method.attend_prompt(context(3, 1), *inputs)
    assert largest[1] <= 4.1 * largest[0]
    assert largest[1] < 3 * 4000 * 4000 * 4 / 16


@pytest.mark.parametrize(
    ("field", "value"),
    [("vertical", 0), ("slash", 0), ("last_queries", 0), ("dense_length", -1), ("vertical_share", 1.5), ("sinks", -1)],
)
def test_fields_out_of_range(field, value):
    with pytest.raises(kvviz.InvalidInputError, match=field):
        kvviz.methods.create("minference", **{field: value})


class TestInAModel:
    @pytest.fixture
    def tiny(self):
        return kvviz.LanguageModel(make("llama"), letters_tokenizer(), name="tiny-llama")

    @pytest.fixture
    def sparse(self):
        return kvviz.methods.create("minference", **SPARSE)

    @pytest.mark.parametrize("architecture", ["llama", "llama_mqa", "gemma2", "qwen3"])
    def test_the_model_follows_the_pattern(self, architecture, monkeypatch):
        """The output of each layer equals the reference, with the model's scale and soft-cap."""
        model, ids = make(architecture), prompt(150)
        method = kvviz.methods.create("minference", **SPARSE)
        plain = model(ids).logits
        kvviz.attach(model)
        agrees, attend_prompt = {}, type(method).attend_prompt

        def spy(self, layer, queries, keys, values):
            output = attend_prompt(self, layer, queries, keys, values)
            expected = reference(self, layer, queries, keys, values)
            agrees[layer.index] = np.allclose(output[0].numpy(), expected, atol=1e-4)
            return output

        monkeypatch.setattr(type(method), "attend_prompt", spy)
        cache = kvviz.SelectiveCache(model, method)
        with torch.no_grad():
            logits = model(ids, past_key_values=cache).logits
        served = [layer.context.index for layer in cache.selective_layers]
        assert agrees == dict.fromkeys(served, True)
        assert not torch.allclose(logits, plain, atol=1e-2), "the pattern covers all tokens"

    @pytest.mark.slow
    def test_left_padding_does_not_change_a_row(self, tiny, sparse):
        model = tiny.model
        kvviz.attach(model)
        short, long = prompt(130, seed=2), prompt(200, seed=3)
        padded = torch.cat([torch.cat([torch.zeros(1, 70, dtype=torch.long), short], 1), long])
        mask = (padded != 0).long()
        together = model.generate(
            padded, attention_mask=mask, past_key_values=kvviz.SelectiveCache(model, sparse), **GREEDY
        )
        for row, ids in enumerate((short, long)):
            alone = model.generate(ids, past_key_values=kvviz.SelectiveCache(model, sparse), **GREEDY)
            assert torch.equal(together[row, 200:], alone[0, ids.shape[1] :])

    def test_a_chunk_may_be_only_padding_in_one_row(self, tiny, sparse):
        model = tiny.model
        kvviz.attach(model)

        def last_logits(ids, starts):
            cache = kvviz.SelectiveCache(model, sparse)
            cache.expect(ids.shape[1])
            mask = (ids != 0).long()
            position_ids = (mask.cumsum(1) - 1).clamp(min=0)
            with torch.no_grad():
                for start, stop in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
                    part = slice(start, stop)
                    logits = model(
                        ids[:, part], attention_mask=mask[:, :stop], position_ids=position_ids[:, part],
                        past_key_values=cache,
                    ).logits  # fmt: skip
            return logits[:, -1]

        short, long = prompt(80, seed=2), prompt(200, seed=3)
        padded = torch.cat([torch.cat([torch.zeros(1, 120, dtype=torch.long), short], 1), long])
        together = last_logits(padded, [0, 50, 100, 150])
        assert torch.allclose(together[:1], last_logits(short, [0, 30]), atol=1e-5)
        assert torch.allclose(together[1:], last_logits(long, [0, 50, 100, 150]), atol=1e-5)

    def test_each_chunk_has_its_own_pattern(self, tiny, sparse, monkeypatch):
        monkeypatch.setattr(generation, "PREFILL_CHUNK", 70)
        ids = prompt(200)
        all_columns = kvviz.methods.create("minference", dense_length=0, vertical_share=1.0)
        full = kvviz.generate(tiny, ids, "full", max_new_tokens=12)
        assert kvviz.generate(tiny, ids, all_columns, max_new_tokens=12).token_ids == full.token_ids
        chunked = kvviz.generate(tiny, ids, "full", prefill=sparse, max_new_tokens=12)
        kvviz.attach(tiny.model)
        cache = kvviz.SelectiveCache(tiny.model, sparse)
        cache.expect(200)
        with torch.no_grad():
            for chunk in ids.split(70, dim=1):
                logits = tiny.model(chunk, past_key_values=cache).logits
        assert chunked.token_ids[0] == int(logits[0, -1].argmax())
        assert chunked.token_ids != full.token_ids

    def test_a_second_turn(self, tiny, sparse):
        """With full coverage the second turn equals that of the model alone; with the sparse pattern it differs."""
        model = tiny.model
        first, second = prompt(120, seed=4), prompt(90, seed=5)
        plain = model(torch.cat([first, second], 1)).logits[0, -1]
        kvviz.attach(model)
        for method, same in ((kvviz.methods.create("minference"), True), (sparse, False)):
            cache = kvviz.SelectiveCache(model, method)
            with torch.no_grad():
                model(first, past_key_values=cache)
                logits = model(second, past_key_values=cache).logits[0, -1]
            assert torch.allclose(logits, plain, atol=1e-4) == same

    def test_with_another_method_for_decoding(self, tiny, sparse):
        ids = prompt(250)
        fields = {"budget": 64, "dense_layers": 0, "max_new_tokens": 12}
        dense_prefill = kvviz.generate(tiny, ids, "clusterkv", **fields).token_ids
        assert kvviz.generate(tiny, ids, "clusterkv", prefill="minference", **fields).token_ids == dense_prefill
        combined = kvviz.generate(tiny, ids, "clusterkv", prefill=sparse, record=True, **fields)
        assert combined.token_ids != dense_prefill
        assert combined.ledger.attended == 63 + len(combined.token_ids) - 1, "63 and those that wait for a cluster"
        evicting = kvviz.generate(tiny, ids, "streaming_llm", 64, prefill=sparse, max_new_tokens=12)
        assert len(evicting.token_ids) == 12 or 2 in evicting.token_ids

    def test_two_threads_do_not_mix(self, tiny, sparse):
        kvviz.attach(tiny.model)
        prompts = [prompt(180, seed=seed) for seed in (6, 7)]

        def generate(ids):
            cache = kvviz.SelectiveCache(tiny.model, sparse)
            return tiny.model.generate(ids, past_key_values=cache, **GREEDY)

        alone = [generate(ids) for ids in prompts]
        with ThreadPoolExecutor(2) as threads:
            together = list(threads.map(generate, prompts))
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))

    def test_compare_gives_it_one_row_for_all_budgets(self, tiny):
        table = kvviz.compare(tiny, prompt(80), ["full", "minference", "quest"], [48, 64], max_new_tokens=4)
        assert table["method"].tolist() == ["full", "minference", "quest", "quest"]

    def test_a_method_without_prefill_is_refused_as_prefill(self, tiny):
        for call in (
            lambda: kvviz.generate(tiny, prompt(80), "quest", 64, prefill="clusterkv"),
            lambda: kvviz.compare(tiny, prompt(80), ["quest"], [64], prefill="clusterkv"),
        ):
            with pytest.raises(kvviz.InvalidInputError, match=r"got clusterkv; wanted .*minference"):
                call()

    def test_compare_prefills_once_for_each_prefill(self, tiny, sparse, monkeypatch):
        ids, lengths = prompt(230), []
        forward = tiny.model.forward
        monkeypatch.setattr(
            tiny.model, "forward", lambda ids, **kwargs: (lengths.append(ids.shape[1]), forward(ids, **kwargs))[1]
        )
        methods = {"full": "full", "sparse": sparse, "clusterkv": "clusterkv", "quest": "quest"}
        table = kvviz.compare(tiny, ids, methods, [64], max_new_tokens=8).set_index("method")
        assert lengths.count(230) == 2
        for label, method in methods.items():
            budget = {} if isinstance(method, kvviz.methods.Method) else {"budget": 64}
            assert table.loc[label, "text"] == kvviz.generate(tiny, ids, method, max_new_tokens=8, **budget).text
        assert table.loc["sparse", ["recall", "attention_mass", "output_error"]].tolist() == [1, 1, 0]
        assert table.loc["sparse", "token_agreement"] < 1

        lengths.clear()
        sparse_table = kvviz.compare(tiny, ids, ["full", "clusterkv", "quest"], [64], max_new_tokens=8, prefill=sparse)
        assert lengths.count(230) == 2, "full attention has its own prefill"
        sparse_table = sparse_table.set_index("method")
        for name in ("clusterkv", "quest"):
            alone = kvviz.generate(tiny, ids, name, 64, prefill=sparse, max_new_tokens=8)
            assert sparse_table.loc[name, "text"] == alone.text
        assert sparse_table.loc["full", "text"] == table.loc["full", "text"]

    def test_a_replay_is_dense(self, tiny):
        trace = kvviz.capture(tiny, prompt(120))
        recording = kvviz.replay(trace, "minference", queries=8)
        assert recording.layers == kvviz.replay(trace, "full", queries=8).layers == ()
        assert recording.dense_layers == (0, 1, 2, 3)
