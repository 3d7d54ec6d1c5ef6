"""Queries speculated from the attention input of the layer before, against projections done by hand."""

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
class Asked(InfiniGen):
    """InfiniGen that notes the queries it is asked with: (layer, queries [B, Q, D]) in order."""

    notes: list = field(default_factory=list)

    def select(self, state, queries):
        self.notes.append((state.layer.index, queries))
        return super().select(state, queries)


class Inputs:
    """What every attention module was called with at each decode step, noted by hooks of the test's own."""

    def __init__(self, model):
        self.calls = {}
        self.modules = {
            module.layer_idx: module
            for module in model.modules()
            if hasattr(module, "layer_idx") and type(module).__name__.endswith("Attention")
        }
        self.handles = [m.register_forward_pre_hook(self.note, with_kwargs=True) for m in self.modules.values()]

    def note(self, module, args, kwargs):
        hidden = args[0] if args else kwargs["hidden_states"]
        holds_cache = any(isinstance(value, kvviz.SelectiveCache) for value in (*args, *kwargs.values()))
        if hidden.shape[1] == 1 and holds_cache:
            self.calls.setdefault(module.layer_idx, []).append((hidden, kwargs))

    def remove(self):
        for handle in self.handles:
            handle.remove()


def generated(model, ids, **inputs):
    """The method with its notes, and the test's own notes, of one generation."""
    own = Inputs(model)
    method = Asked(budget=32)
    cache = kvviz.SelectiveCache(model, method)
    written = model.generate(ids, past_key_values=cache, **inputs, **GREEDY)
    own.remove()
    return method, own, written


def by_layer(method):
    """{layer: [queries of each step]}"""
    found: dict[int, list[torch.Tensor]] = {}
    for layer, queries in method.notes:
        found.setdefault(layer, []).append(queries)
    return found


def rotated(queries, position, theta):
    """RoPE of [Q, D] at a position, channel i paired with i + D/2, in NumPy."""
    half = queries.shape[-1] // 2
    angles = position * theta ** (-np.arange(half) / half)
    first, second = queries[:, :half], queries[:, half:]
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], axis=-1
    )


def projected(module, hidden, position, theta):
    """A layer's queries [Q, D] for a hidden state [width], projected, normed where the layer norms, and rotated."""
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
def test_queries_are_those_of_the_layer_on_the_input_before(architecture):
    model = make(architecture)
    kvviz.attach(model)
    method, own, _ = generated(model, prompt(100))
    asked = by_layer(method)
    assert set(asked) == {1, 2, 3}
    theta = model.config.rope_parameters["rope_theta"]
    for layer, steps in asked.items():
        assert len(steps) == STEPS
        for step, queries in enumerate(steps):
            hidden = own.calls[layer - 1][step][0][0, 0]
            expected = projected(own.modules[layer], hidden, 100 + step, theta)
            assert np.allclose(queries[0].numpy(), expected, atol=1e-4)
            real = projected(own.modules[layer], own.calls[layer][step][0][0, 0], 100 + step, theta)
            assert not np.allclose(queries[0].numpy(), real, atol=1e-2), "these are the layer's own queries"


@pytest.mark.parametrize("architecture", SPECULATING)
def test_every_architecture_speculates_what_its_module_computes(architecture):
    """The module itself, called on the earlier input and watched by the attention observer."""
    model = make(architecture)
    kvviz.attach(model)
    method, own, _ = generated(model, prompt(100))
    asked = by_layer(method)
    assert set(asked) == set(range(1, 4)) - set(SLIDING_LAYERS.get(architecture, ()))
    for layer, steps in asked.items():
        for step, queries in enumerate(steps):
            kwargs = {k: v for k, v in own.calls[layer][step][1].items() if not isinstance(v, kvviz.SelectiveCache)}
            kwargs |= {"hidden_states": own.calls[layer - 1][step][0], "attention_mask": None}
            seen = []
            with torch.no_grad(), attention_observer(model, lambda _, query, *rest, seen=seen: seen.append(query)):
                own.modules[layer](**kwargs)
            assert torch.allclose(queries, seen[0][:, :, -1], atol=1e-5)


def test_speculation_changes_what_is_selected():
    """Without a guess a method gets the layer's own queries and chooses other tokens."""
    model, ids = make("llama"), prompt(300)
    kvviz.attach(model)
    attended = []
    for guesses in (True, False):
        cache = kvviz.SelectiveCache(model, Asked(budget=32, ratio=1.0))
        for layer in cache.selective_layers if not guesses else ():
            layer.speculate = None
        model.generate(ids, past_key_values=cache, **GREEDY)
        attended.append(cache.selective_layers[1].last.indices)
    assert not torch.equal(*attended)


def test_a_padded_row_is_asked_what_it_is_asked_alone():
    model = make("llama")
    kvviz.attach(model)
    short, long = prompt(150, seed=2), prompt(200, seed=3)
    padded = torch.cat([torch.cat([torch.zeros(1, 50, dtype=torch.long), short], 1), long])
    together = by_layer(generated(model, padded, attention_mask=(padded != 0).long())[0])
    for row, ids in enumerate((short, long)):
        alone = by_layer(generated(model, ids)[0])
        for layer, steps in alone.items():
            mine = together[layer][row::2]  # a row after the other at each step
            assert len(mine) == len(steps)
            assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(mine, steps, strict=True))


def test_two_threads_on_one_model_do_not_mix():
    model = make("llama")
    kvviz.attach(model)
    prompts = [prompt(200, seed=seed) for seed in (4, 5)]
    alone = []
    for ids in prompts:
        method = Asked(budget=32)
        model.generate(ids, past_key_values=kvviz.SelectiveCache(model, method), **GREEDY)
        alone.append(by_layer(method))
    methods = [Asked(budget=32) for _ in prompts]

    def work(number):
        cache = kvviz.SelectiveCache(model, methods[number])
        model.generate(prompts[number], past_key_values=cache, **GREEDY)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for method, expected in zip(methods, alone, strict=True):
        found = by_layer(method)
        for layer, steps in expected.items():
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found[layer], steps, strict=True))


def test_a_hook_that_torch_is_still_adding_does_no_harm():
    """Between torch's two steps of adding or removing it, another thread's call gives no keyword arguments."""
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


def test_a_cache_leaves_nothing_behind():
    """Hooks go with the cache, at once; a prompt's activations are not kept."""
    model = make("llama")
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, "infinigen")
    watched = [module for module in model.modules() if module._forward_pre_hooks]
    assert len(watched) == 4
    with torch.no_grad():
        model(prompt(100), past_key_values=cache)
    assert not cache._inputs._calls
    with torch.no_grad():
        model(prompt(1), past_key_values=cache)
    assert sorted(cache._inputs._calls) == [0, 1, 2, 3]
    gone = weakref.ref(cache)
    gc.disable()
    try:
        del cache
        assert gone() is None
        assert not any(module._forward_pre_hooks for module in watched)
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

    def test_a_prompt_in_chunks_gives_the_same(self, tiny, monkeypatch):
        ids = prompt(301)
        whole = kvviz.generate(tiny, ids, "infinigen", 32, max_new_tokens=12, record=True)
        monkeypatch.setattr("kvviz.generation.generating.PREFILL_CHUNK", 100)  # leaves a last chunk of one token
        chunked = kvviz.generate(tiny, ids, "infinigen", 32, max_new_tokens=12, record=True)
        assert chunked.token_ids == whole.token_ids
        for layer in (1, 2, 3):
            for step in range(11):
                assert np.array_equal(chunked.recording.indices(step, layer), whole.recording.indices(step, layer))

    def test_compare_forks_it(self, tiny):
        ids = prompt(300)
        table = kvviz.compare(tiny, ids, ["infinigen", "sparq"], [32, 64], max_new_tokens=12)
        for _, row in table[table.method == "infinigen"].iterrows():
            alone = kvviz.generate(tiny, ids, "infinigen", int(row.budget), max_new_tokens=12)
            assert row.text == alone.text

    def test_a_second_turn_speculates_too(self):
        model = make("llama")
        kvviz.attach(model)
        method = Asked(budget=32)
        cache = kvviz.SelectiveCache(model, method)
        ids = model.generate(prompt(100), past_key_values=cache, **GREEDY)
        ids = torch.cat([ids, prompt(30, seed=7)], dim=1)
        own = Inputs(model)
        method.notes.clear()
        model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, **GREEDY)
        own.remove()
        theta = model.config.rope_parameters["rope_theta"]
        for layer, steps in by_layer(method).items():
            for step, queries in enumerate(steps):
                hidden = own.calls[layer - 1][step][0][0, 0]
                expected = projected(own.modules[layer], hidden, ids.shape[1] + step, theta)
                assert np.allclose(queries[0].numpy(), expected, atol=1e-4)
