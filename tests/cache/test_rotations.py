"""RoPE read from models: turning gives what transformers gives, in every layer of every architecture."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transformers

import kvviz
from kvviz.cache.attachment import attention_observer
from kvviz.cache.rotations import rotations
from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.generation.replaying import trace_context
from kvviz.methods.base import LayerContext
from kvviz.methods.rotation import Rotation, from_pairs, pairs, rotate, unrotate
from tests import tiny_models

YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
MORE = {  # architectures that turn pairs of other channels, only some channels, or only some layers
    "cohere": ("Cohere", {"num_key_value_heads": 2}),
    "cohere2": (
        "Cohere2",
        {"num_key_value_heads": 2, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16},
    ),
    "glm": ("Glm", {"num_key_value_heads": 2, "head_dim": 8}),
    "phi": ("Phi", {"num_key_value_heads": 2}),
    "stablelm": ("StableLm", {"num_key_value_heads": 2}),
    "smollm3": ("SmolLM3", {"num_key_value_heads": 2, "no_rope_layers": [1, 0, 1, 0]}),
    "olmo2": ("Olmo2", {"num_key_value_heads": 2}),
    "granite": ("Granite", {"num_key_value_heads": 2}),
    "gpt2": ("GPT2", {}),
    "llama_yarn": ("Llama", {"num_key_value_heads": 2, "rope_parameters": YARN}),
    "llama_llama3": ("Llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3}),
    "llama_dynamic": ("Llama", {"num_key_value_heads": 2, "rope_parameters": DYNAMIC}),
}
UNKNOWN = ("gpt2", "llama_dynamic")  # learned positions; frequencies that depend on the length
WITHOUT = {"smollm3": (1, 3), "cohere2": (1, 3)}  # layers that skip RoPE


def model_of(name):
    if name in tiny_models.ARCHITECTURES:
        return tiny_models.make(name)
    family, extra = MORE[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**tiny_models.SIZES, **extra, initializer_range=0.2)
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    return getattr(transformers, f"{family}{head}")(config).eval()


@torch.no_grad()
def observed(model, position):
    """Queries and keys [1, heads, 1, D] by layer of a single token at a position.

    A token that is alone attends to itself, wherever it is: all layers get the same hidden states at each position, so
    that queries and keys differ by their RoPE only.
    """
    seen = {}

    def note(layer, queries, keys, values, scale, softcap):
        seen[layer] = queries.clone(), keys.clone()

    with attention_observer(model, note):
        model(torch.tensor([[5]]), position_ids=torch.tensor([[position]]), use_cache=False)
    return seen


@pytest.mark.parametrize("name", [*tiny_models.ARCHITECTURES, *MORE])
def test_turning_gives_what_the_model_gives(name):
    model = model_of(name)
    found = rotations(model)
    if name in UNKNOWN:
        assert found == {}
        return
    at = {position: observed(model, position) for position in (0, 7, 300)}
    assert set(found) == set(at[0]), "every layer has its RoPE"
    assert tuple(layer for layer, one in found.items() if not one.dim) == WITHOUT.get(name, ())
    for layer, rotation in found.items():
        for start, before, there in zip(at[0][layer], at[7][layer], at[300][layer], strict=True):
            plain = unrotate(before, torch.tensor([7]), rotation)  # at position 0 only the scaling is left
            assert torch.allclose(rotate(plain, torch.tensor([300]), rotation), there, atol=2e-4), (layer, rotation)
            assert torch.allclose(plain[..., : rotation.dim] * rotation.scaling, start[..., : rotation.dim], atol=2e-4)
            assert torch.equal(before, there) == (not rotation.dim)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_turning_is_the_paper_s_rotation(layout):
    """RoFormer, equation 15: each pair is multiplied by a 2 x 2 rotation matrix; the rest is left alone."""
    rng, rotation = np.random.default_rng(0), Rotation((1.0, 0.25, 0.01), layout, scaling=1.5)
    vectors, positions = rng.normal(size=(2, 3, 5, 8)), np.array([0, 1, 4, 100, 1000])
    expected = vectors.copy()
    for place in np.ndindex(2, 3, 5):
        for pair, frequency in enumerate(rotation.frequencies):
            one, two = (pair, pair + 3) if layout == "halves" else (2 * pair, 2 * pair + 1)
            angle = positions[place[2]] * frequency
            turned = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            expected[place][[one, two]] = 1.5 * turned @ vectors[place][[one, two]]
    given = torch.tensor(vectors, dtype=torch.float32)
    result = rotate(given, torch.tensor(positions), rotation)
    assert np.allclose(result.numpy(), expected, atol=1e-4)
    assert torch.allclose(unrotate(result, torch.tensor(positions), rotation), given, atol=1e-4)
    assert torch.equal(from_pairs(*pairs(given, rotation), given[..., 6:], rotation), given)


def test_layers_of_different_types_have_their_own_frequencies():
    found = rotations(tiny_models.make("gemma3"))
    assert found[0] == found[2] != found[1] == found[3]


def test_a_cache_and_a_trace_know_the_rotation_of_their_layers(tmp_path):
    model = tiny_models.make("gemma3")
    found = rotations(model)
    cache = kvviz.SelectiveCache(model, "full")
    assert {layer.context.index: layer.context.rotation for layer in cache.selective_layers} == {
        1: found[1], 3: found[3]
    }  # fmt: skip
    lm = kvviz.LanguageModel(model, tiny_models.letters_tokenizer())
    trace = kvviz.capture(lm, tiny_models.prompt(40), layers=[1, 2])
    loaded = kvviz.Trace.load(trace.save(tmp_path / "trace.safetensors"))
    assert dict(loaded.rotations) == dict(trace.rotations) == dict(found)
    assert trace_context(loaded, 2).rotation == found[2]


def test_a_trace_without_rotations_loads_and_is_refused_where_they_are_needed(tmp_path):
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer())
    trace = kvviz.capture(lm, tiny_models.prompt(40))
    earlier = dataclasses.replace(trace, rotations={}).save(tmp_path / "earlier.safetensors")
    assert b"rotations" not in earlier.read_bytes()[:20_000], "written as earlier versions did"
    context = trace_context(kvviz.Trace.load(earlier), 1)
    assert context.rotation is None
    with pytest.raises(InvalidInputError, match="mine: got layer 1, whose RoPE is not known"):
        context.known_rotation("mine")
    assert trace_context(trace, 1).known_rotation("mine") == trace.rotations[1]


@pytest.mark.parametrize(
    "change",
    [
        {"rotations": {9: Rotation((1.0,))}},
        {"rotations": {0: Rotation((1.0,) * 5)}},
    ],
    ids=["a layer outside the model", "more channels than a head has"],
)
def test_impossible_rotations_of_a_trace_are_refused(change):
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer())
    trace = kvviz.capture(lm, tiny_models.prompt(40))
    with pytest.raises(IncompatibleFileError, match="rotations"):
        dataclasses.replace(trace, **change)


@pytest.mark.parametrize("fields", [{"layout": "thirds"}, {"scaling": 0.0}])
def test_impossible_fields_are_refused(fields):
    with pytest.raises(InvalidInputError, match="rotation"):
        Rotation((1.0,), **fields)


def test_a_context_needs_no_rotation():
    assert LayerContext(0, 1, 1, 1, 8, 1.0).rotation is None
