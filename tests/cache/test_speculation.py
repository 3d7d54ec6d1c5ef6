"""Queries speculated from the attention input of the previous layer, against projections by hand."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.attachment import attention_observer
from kvviz.methods.infinigen import InfiniGen
from tests.tiny_models import ARCHITECTURES, SLIDING_LAYERS, letters_tokenizer, make, prompt

STEPS = 5
GREEDY = {"max_new_tokens": STEPS + 1, "do_sample": False, "eos_token_id": None}
SPECULATING = [name for name in ARCHITECTURES if len(SLIDING_LAYERS.get(name, ())) < 4]


@dataclass
class RecordingInfiniGen(InfiniGen):
    """InfiniGen that records the queries that it gets, in order: (layer, queries [B, Q, D])."""

    recorded: list = field(default_factory=list)

    def select(self, state, queries):
        self.recorded.append((state.layer.index, queries))
        return super().select(state, queries)


class Inputs:
    """The arguments of all attention modules at each decode step, recorded by hooks."""

    def __init__(self, model):
        self.calls = {}
        self.modules = {
            module.layer_idx: module
            for module in model.modules()
            if hasattr(module, "layer_idx") and type(module).__name__.endswith("Attention")
        }
        self.handles = [m.register_forward_pre_hook(self.record, with_kwargs=True) for m in self.modules.values()]

    def record(self, module, args, kwargs):
        hidden = args[0] if args else kwargs["hidden_states"]
        holds_cache = any(isinstance(value, kvviz.SelectiveCache) for value in (*args, *kwargs.values()))
        if hidden.shape[1] == 1 and holds_cache:
            self.calls.setdefault(module.layer_idx, []).append((hidden, kwargs))

    def remove(self):
        for handle in self.handles:
            handle.remove()


def generated(model, ids, **inputs):
    """The method with its recorded queries, the recorded inputs, and the token ids of one generation."""
    inputs_of_layers = Inputs(model)
    method = RecordingInfiniGen(budget=32)
    cache = kvviz.SelectiveCache(model, method)
    token_ids = model.generate(ids, past_key_values=cache, **inputs, **GREEDY)
    inputs_of_layers.remove()
    return method, inputs_of_layers, token_ids


def by_layer(method):
    """{layer: [queries of each step]}"""
    queries_of_layer: dict[int, list[torch.Tensor]] = {}
    for layer, queries in method.recorded:
        queries_of_layer.setdefault(layer, []).append(queries)
    return queries_of_layer


def rotated(queries, position, theta):
    """RoPE of [Q, D] at a position, channel i paired with i + D/2, in NumPy."""
    half = queries.shape[-1] // 2
    angles = position * theta ** (-np.arange(half) / half)
    first, second = queries[:, :half], queries[:, half:]
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], axis=-1
    )


def projected(module, hidden, position, theta):
    """A layer's queries [Q, D] for a hidden state [width]: projected, normalised if the layer does so, and rotated."""
    width = module.head_dim
    queries = (module.q_proj.weight @ hidden).detach().double().numpy()
    if module.q_proj.bias is not None:
        queries = queries + module.q_proj.bias.detach().double().numpy()
    queries = queries.reshape(-1, width)
    if hasattr(module, "q_norm"):
        scale = 1 / np.sqrt((queries**2).mean(-1, keepdims=True) + module.q_norm.variance_epsilon)
        queries = queries * scale * module.q_norm.weight.detach().double().numpy()
    return rotated(queries, position, theta)


@pytest.mark.parametrize("architecture", ["llama", "llama_mqa", "qwen2", "qwen3"])
def test_queries_are_those_of_the_layer_for_the_previous_input(architecture):
    model = make(architecture)
    kvviz.attach(model)
    method, inputs, _ = generated(model, prompt(100))
    speculated = by_layer(method)
    assert set(speculated) == {1, 2, 3}
    theta = model.config.rope_parameters["rope_theta"]
    for layer, steps in speculated.items():
        assert len(steps) == STEPS
        for step, queries in enumerate(steps):
            hidden = inputs.calls[layer - 1][step][0][0, 0]
            expected = projected(inputs.modules[layer], hidden, 100 + step, theta)
            assert np.allclose(queries[0].numpy(), expected, atol=1e-4)
            exact = projected(inputs.modules[layer], inputs.calls[layer][step][0][0, 0], 100 + step, theta)
            assert not np.allclose(queries[0].numpy(), exact, atol=1e-2), "these are the layer's exact queries"


@pytest.mark.parametrize("architecture", SPECULATING)
def test_all_architectures_speculate_what_their_modules_compute(architecture):
    """The reference is the module itself, called with the previous input under the attention observer."""
    model = make(architecture)
    kvviz.attach(model)
    method, inputs, _ = generated(model, prompt(100))
    speculated = by_layer(method)
    assert set(speculated) == set(range(1, 4)) - set(SLIDING_LAYERS.get(architecture, ()))
    for layer, steps in speculated.items():
        for step, queries in enumerate(steps):
            kwargs = {k: v for k, v in inputs.calls[layer][step][1].items() if not isinstance(v, kvviz.SelectiveCache)}
            kwargs |= {"hidden_states": inputs.calls[layer - 1][step][0], "attention_mask": None}
            exact = []
            with torch.no_grad(), attention_observer(model, lambda _, query, *rest, exact=exact: exact.append(query)):
                inputs.modules[layer](**kwargs)
            assert torch.allclose(queries, exact[0][:, :, -1], atol=1e-5)


def test_speculation_changes_what_is_selected():
    """Without speculation a method gets the layer's exact queries and selects other tokens."""
    model, ids = make("llama"), prompt(300)
    kvviz.attach(model)
    selections = []
    for speculates in (True, False):
        cache = kvviz.SelectiveCache(model, RecordingInfiniGen(budget=32, ratio=1.0))
        for layer in cache.selective_layers if not speculates else ():
            layer.speculate = None
        model.generate(ids, past_key_values=cache, **GREEDY)
        selections.append(cache.selective_layers[1].last.indices)
    assert not torch.equal(*selections)


def test_padding_does_not_change_the_speculated_queries():
    model = make("llama")
    kvviz.attach(model)
    short, long = prompt(150, seed=2), prompt(200, seed=3)
    padded = torch.cat([torch.cat([torch.zeros(1, 50, dtype=torch.long), short], 1), long])
    together = by_layer(generated(model, padded, attention_mask=(padded != 0).long())[0])
    for row, ids in enumerate((short, long)):
        alone = by_layer(generated(model, ids)[0])
        for layer, steps in alone.items():
            of_row = together[layer][row::2]  # the rows alternate at each step
            assert len(of_row) == len(steps)
            assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(of_row, steps, strict=True))


def test_two_threads_on_one_model_do_not_mix():
    model = make("llama")
    kvviz.attach(model)
    prompts = [prompt(200, seed=seed) for seed in (4, 5)]
    alone = []
    for ids in prompts:
        method = RecordingInfiniGen(budget=32)
        model.generate(ids, past_key_values=kvviz.SelectiveCache(model, method), **GREEDY)
        alone.append(by_layer(method))
    methods = [RecordingInfiniGen(budget=32) for _ in prompts]

    def generate(number):
        cache = kvviz.SelectiveCache(model, methods[number])
        model.generate(prompts[number], past_key_values=cache, **GREEDY)

    threads = [threading.Thread(target=generate, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for method, expected in zip(methods, alone, strict=True):
        speculated = by_layer(method)
        for layer, steps in expected.items():
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(speculated[layer], steps, strict=True))


def test_a_hook_without_keyword_arguments_is_ignored():
    """While torch adds or removes the hook in two steps, a call of another thread has no keyword arguments."""
    model = make("llama")
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, "infinigen")
    attention = model.model.layers[1].self_attn
    attention._forward_pre_hooks_with_kwargs.clear()
    ids = prompt(40)
    with torch.no_grad():
        expected = make("llama")(ids).logits
        assert torch.allclose(model(ids).logits, expected, atol=1e-4)
    assert not cache._inputs._calls


def test_a_deleted_cache_removes_its_hooks():
    """The hooks are removed at once with the cache; a prompt's activations are not kept."""
    model = make("llama")
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, "infinigen")
    hooked_modules = [module for module in model.modules() if module._forward_pre_hooks]
    assert len(hooked_modules) == 4
    with torch.no_grad():
        model(prompt(100), past_key_values=cache)
    assert not cache._inputs._calls
    with torch.no_grad():
        model(prompt(1), past_key_values=cache)
    assert sorted(cache._inputs._calls) == [0, 1, 2, 3]
    reference = weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert reference() is None
        assert not any(module._forward_pre_hooks for module in hooked_modules)
    finally:
        gc.enable()


def test_a_model_without_numbered_attention_is_refused():
    model = make("llama")
    for layer in model.model.layers:
        layer.self_attn.__class__ = type("Mixer", (type(layer.self_attn),), {})
    with pytest.raises(kvviz.UnsupportedModelError, match="speculation"):
        kvviz.SelectiveCache(model, "infinigen")


class TestGenerate:
    @pytest.fixture
    def tiny(self):
        return kvviz.LanguageModel(make("llama"), letters_tokenizer())

    def test_a_prompt_in_chunks_gives_the_same_tokens(self, tiny, monkeypatch):
        ids = prompt(301)
        whole = kvviz.generate(tiny, ids, "infinigen", 32, max_new_tokens=12, record=True)
        monkeypatch.setattr("kvviz.generation.generating.PREFILL_CHUNK", 100)  # the last chunk has one token
        chunked = kvviz.generate(tiny, ids, "infinigen", 32, max_new_tokens=12, record=True)
        assert chunked.token_ids == whole.token_ids
        for layer in (1, 2, 3):
            for step in range(11):
                assert np.array_equal(chunked.recording.indices(step, layer), whole.recording.indices(step, layer))

    def test_compare_with_forked_caches(self, tiny):
        ids = prompt(300)
        table = kvviz.compare(tiny, ids, ["infinigen", "sparq"], [32, 64], max_new_tokens=12)
        for _, row in table[table.method == "infinigen"].iterrows():
            alone = kvviz.generate(tiny, ids, "infinigen", int(row.budget), max_new_tokens=12)
            assert row.text == alone.text

    def test_a_second_turn_speculates_too(self):
        model = make("llama")
        kvviz.attach(model)
        method = RecordingInfiniGen(budget=32)
        cache = kvviz.SelectiveCache(model, method)
        ids = model.generate(prompt(100), past_key_values=cache, **GREEDY)
        ids = torch.cat([ids, prompt(30, seed=7)], dim=1)
        inputs = Inputs(model)
        method.recorded.clear()
        model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **GREEDY)
        inputs.remove()
        theta = model.config.rope_parameters["rope_theta"]
        for layer, steps in by_layer(method).items():
            for step, queries in enumerate(steps):
                hidden = inputs.calls[layer - 1][step][0][0, 0]
                expected = projected(inputs.modules[layer], hidden, ids.shape[1] + step, theta)
                assert np.allclose(queries[0].numpy(), expected, atol=1e-4)
