"""inspect() and `kvviz doctor`: what they say of a model is what happens when the model is used."""

from __future__ import annotations

import pytest
import torch
from click.testing import CliRunner
from transformers import DynamicCache

import kvviz
from kvviz.evaluation.command import group
from tests.tiny_models import (
    ARCHITECTURES,
    EXACT_LAYERS,
    MORE_ARCHITECTURES,
    REFUSED_ARCHITECTURES,
    letters_tokenizer,
    make,
    prompt,
)


def use(model):
    lm = kvviz.LanguageModel(model, letters_tokenizer())
    return kvviz.generate(lm, prompt(20), "quest", 4096, max_new_tokens=2)


def doctor(*arguments: str):
    return CliRunner().invoke(group(), ["doctor", *arguments])


@pytest.fixture
def no_weights(tmp_path):
    """A directory with a config and nothing else."""
    make("gemma2").config.save_pretrained(tmp_path / "tiny-gemma2")
    return tmp_path / "tiny-gemma2"


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
def test_the_layers_are_those_that_a_cache_serves(architecture):
    model = make(architecture)
    inspection = kvviz.inspect(model)
    assert inspection.works
    assert inspection.notes == () or not inspection.served
    exact = tuple(sorted(index for layers in inspection.exact.values() for index in layers))
    assert exact == EXACT_LAYERS.get(architecture, ()) == kvviz.SelectiveCache(model, "full").exact_layers
    assert inspection.parameters == sum(weights.numel() for weights in model.parameters())


@pytest.mark.parametrize("architecture", REFUSED_ARCHITECTURES)
def test_a_refused_model_is_refused_in_the_same_words_when_it_is_used(architecture):
    model, reason = make(architecture), REFUSED_ARCHITECTURES[architecture][2]
    inspection = kvviz.inspect(model)
    assert reason in inspection.refused
    assert not inspection.layers
    with pytest.raises(kvviz.UnsupportedModelError) as error:
        use(model)
    assert str(error.value) == inspection.refused
    by_config = kvviz.inspect(model.config)
    assert reason in by_config.refused


def test_the_reasons_of_exact_layers():
    assert kvviz.inspect(make("gemma3n")).exact == {
        "sliding window of 16 tokens": (2,), "later layers attend to its keys too": (5,),
        "attends to the keys of an earlier layer": (6, 7),
    }  # fmt: skip
    assert kvviz.inspect(make("qwen3_next")).exact == {"linear attention": (0, 2)}
    assert kvviz.inspect(make("falcon_h1")).exact == {"linear attention beside attention": (0, 1, 2, 3)}
    quest = kvviz.methods.create("quest", dense_layers=1)
    assert kvviz.inspect(make("llama"), quest).exact == {"quest attends to all tokens here": (0,)}


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3n", "bamba", "qwen3_next"])
@pytest.mark.parametrize("length", [10, 100])
def test_the_bytes_are_those_of_a_cache_and_a_trace(architecture, length):
    model = make(architecture)
    inspection = kvviz.inspect(model)
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(prompt(length, batch=2), past_key_values=cache)
    cached = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    assert inspection.cache_bytes(length, batch=2) == sum(layer.keys.nbytes + layer.values.nbytes for layer in cached)
    trace = kvviz.capture(kvviz.LanguageModel(model, letters_tokenizer()), prompt(length))
    arrays = [array for part in (trace.queries, trace.keys, trace.values) for array in part.values()]
    assert inspection.trace_bytes(length) == sum(array.nbytes for array in arrays)
    of_layer = (trace.queries[1], trace.keys[1], trace.values[1])
    assert inspection.trace_bytes(length, [1]) == sum(array.nbytes for array in of_layer)


def test_nothing_of_the_model_changes():
    model = make("llama", seed=3)
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    kvviz.inspect(model)
    assert model.config._attn_implementation == "sdpa"
    assert model.device.type == "cpu"
    assert all(torch.equal(weights, before[name]) for name, weights in model.state_dict().items())


def test_a_config_is_enough(no_weights):
    inspection = kvviz.inspect(no_weights)
    assert (inspection.name, inspection.device, inspection.works) == ("tiny-gemma2", None, True)
    assert inspection.layers == kvviz.inspect(make("gemma2")).layers
    assert "sliding window of 16 tokens" in inspection._repr_html_()


@pytest.mark.parametrize(
    ("model", "arguments", "error", "words"),
    [
        (3, {}, kvviz.InvalidInputError, "a LanguageModel, a transformers model or config"),
        ("smolm2-135m", {}, kvviz.UnknownNameError, "did you mean 'smollm2-135m'"),
        ("smollm2-135m", {"lengths": [0]}, kvviz.InvalidInputError, "from 1"),
        ("smollm2-135m", {"method": "qest"}, kvviz.UnknownNameError, "did you mean 'quest'"),
    ],
)
def test_bad_input(model, arguments, error, words):
    with pytest.raises(error, match=words):
        kvviz.inspect(model, **arguments)


def test_the_command(no_weights, tmp_path):
    works = doctor(str(no_weights), "--method", "quest", "--length", "500")
    assert works.exit_code == 0
    lines = dict(line.split("  ", 1) for line in works.output.splitlines()[1:])
    shown = {name: text.strip() for name, text in lines.items()}
    assert (shown["works"], shown["layers served"]) == ("yes", "3 (1 of 4)")
    assert shown["layers exact: sliding window of 16 tokens"] == "0, 2 (2 of 4)"
    assert shown["layers exact: quest attends to all tokens here"] == "1 (1 of 4)"
    assert "500 tokens" in shown
    make("gpt_oss").config.save_pretrained(tmp_path / "oss")
    refused = doctor(str(tmp_path / "oss"))
    assert refused.exit_code == 1
    assert "no: attention: got GptOssAttention with learned attention sinks" in refused.output
    unknown = doctor(str(tmp_path / "nothing"))
    assert (unknown.exit_code, unknown.output.count("\n")) == (2, 1)


@pytest.mark.model
def test_the_bundled_model_needs_no_dequantised_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("KVVIZ_CACHE", str(tmp_path / "empty"))
    inspection = kvviz.inspect("smollm2-135m")
    assert inspection.geometry == kvviz.Geometry(30, 9, 3, 64, 8192)
    assert inspection.parameters == 134_515_008
    assert inspection.trace_bytes(1) == 57_600
    assert not (tmp_path / "empty").exists()
