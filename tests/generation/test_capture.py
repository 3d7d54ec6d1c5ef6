"""Captured queries, keys and values against transformers' attention weights and cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import kvviz
from kvviz import errors
from kvviz.generation import capturing
from kvviz.models import LanguageModel
from kvviz.trace.parts import ArrayFile
from tests.tiny_llama import SIZES, byte_level

PROMPT = "The quick brown fox jumps over the lazy dog."
FAMILIES = {
    "Llama": {},
    "MQA": {"num_key_value_heads": 1},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": 9},
    "Gemma2": {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 16},
    "GPTNeoX": {"num_key_value_heads": None},
}


def tiny(family: str = "Llama") -> LanguageModel:
    torch.manual_seed(0)
    fields = SIZES | FAMILIES[family]
    name = "Llama" if family == "MQA" else family
    config = getattr(transformers, f"{name}Config")(
        **{key: value for key, value in fields.items() if value is not None}
    )
    return LanguageModel(transformers.AutoModelForCausalLM.from_config(config).eval(), byte_level(), family)


@pytest.mark.parametrize("chunk", [2048, 7], ids=["whole", "chunked"])
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_tensors_give_the_models_own_attention(
    family: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = tiny(family)
    monkeypatch.setattr(capturing, "PREFILL_CHUNK", chunk)
    implementation = lm.model.config._attn_implementation
    trace = kvviz.capture(lm, PROMPT)
    assert lm.model.config._attn_implementation == implementation

    lm.model.set_attn_implementation("eager")
    cache = transformers.DynamicCache()  # without the config it keeps all tokens of sliding-window layers too
    with torch.no_grad():
        reference = lm.model(lm.encode(PROMPT), past_key_values=cache, output_attentions=True, use_cache=True)
    assert trace.layers == (0, 1)
    for layer in trace.layers:
        torch.testing.assert_close(half(trace.keys[layer]), cache.layers[layer].keys[0], atol=2e-3, rtol=2e-3)
        torch.testing.assert_close(half(trace.values[layer]), cache.layers[layer].values[0], atol=2e-3, rtol=2e-3)
        weights = reference.attentions[layer][0]
        keys = half(trace.keys[layer]).repeat_interleave(trace.geometry.group_size, 0)
        logits = half(trace.queries[layer]) @ keys.mT * trace.geometry.head_dim**-0.5
        if family == "Gemma2":
            logits = 50 * torch.tanh(logits / 50)
        logits = logits.masked_fill(weights == 0, -torch.inf)
        torch.testing.assert_close(logits.softmax(-1), weights, atol=2e-3, rtol=2e-3)


def half(array) -> torch.Tensor:
    assert array.dtype == "float16"
    return torch.from_numpy(array).float()


def test_a_trace_has_its_tokens_and_can_be_saved(tmp_path) -> None:
    lm = tiny()
    trace = kvviz.capture(lm, lm.encode(PROMPT), layers=[1], max_tokens=20)
    assert (trace.model, trace.layers, "".join(trace.tokens)) == ("Llama", (1,), PROMPT[:20])
    assert trace.token_ids.tolist() == lm.encode(PROMPT)[0, :20].tolist()
    loaded = kvviz.Trace.load(trace.save(tmp_path / "trace.safetensors"))
    assert loaded.tokens == trace.tokens
    assert (loaded.queries[1] == trace.queries[1]).all()


@pytest.mark.parametrize("family", ["Llama", "Gemma2"])
def test_a_trace_written_as_it_is_made_is_the_trace(family: str, tmp_path, monkeypatch) -> None:
    lm = tiny(family)
    monkeypatch.setattr(capturing, "PREFILL_CHUNK", 7)
    expected = kvviz.capture(lm, PROMPT)
    path = tmp_path / "trace.safetensors"
    written = kvviz.capture(lm, PROMPT, path=path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    for name in ("queries", "keys", "values"):
        assert list(getattr(written, name)) == [0, 1]
        for layer, array in getattr(written, name).items():
            np.testing.assert_array_equal(array, getattr(expected, name)[layer])
            assert not array.flags.owndata, "read, not mapped"
    assert (written.tokens, written.geometry) == (expected.tokens, expected.geometry)
    assert (written.scale, written.softcap) == (expected.scale, expected.softcap)
    np.testing.assert_array_equal(written.token_ids, expected.token_ids)
    one = kvviz.capture(lm, PROMPT, layers=[1], path=path)  # replaces it
    assert one.layers == kvviz.Trace.load(path).layers == (1,)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_half_written_stays(failure, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(capturing, "PREFILL_CHUNK", 7)
    path = tmp_path / "trace.safetensors"
    path.write_bytes(b"what was there before")
    write, parts = ArrayFile.write, []

    def fail_later(*args) -> None:
        parts.append(args)
        if len(parts) == 10:  # in the second chunk
            raise failure
        write(*args)

    monkeypatch.setattr(ArrayFile, "write", fail_later)
    with pytest.raises(type(failure) if isinstance(failure, OSError) else failure):
        kvviz.capture(tiny(), PROMPT, path=path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"what was there before"


def test_layers_without_attention_are_skipped_or_refused() -> None:
    torch.manual_seed(0)
    config = transformers.Lfm2Config(**SIZES, layer_types=["conv", "full_attention"])
    lm = LanguageModel(transformers.AutoModelForCausalLM.from_config(config).eval(), byte_level())
    assert kvviz.capture(lm, PROMPT).layers == (1,)
    with pytest.raises(errors.InvalidInputError, match=r"\[0\], which have no attention.*\[1\]"):
        kvviz.capture(lm, PROMPT, layers=[0, 1])


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "an empty prompt"),
        ("x" * 257, {}, "257 tokens.*256 positions"),
        (torch.zeros(2, 5, dtype=torch.int64), {}, r"shape \[2, 5\]"),
        (torch.zeros(5, dtype=torch.int64), {}, r"shape \[5\]"),
        (torch.zeros(1, 5), {}, "float32"),
        (torch.tensor([[1, 300]]), {}, "token ids from 1 to 300; wanted token ids from 0 to 299"),
        (PROMPT, {"max_tokens": 0}, "max_tokens: got 0"),
        (PROMPT, {"layers": [0, 2]}, r"\(0, 2\); wanted at least one of 0 to 1"),
        (PROMPT, {"layers": [-1]}, "0 to 1"),
        (PROMPT, {"layers": []}, "at least one"),
    ],
)
def test_bad_input_is_refused(prompt, options, message: str) -> None:
    with pytest.raises(errors.InvalidInputError, match=message):
        kvviz.capture(tiny(), prompt, **options)


def test_a_long_prompt_can_be_truncated_to_the_models_positions() -> None:
    assert len(kvviz.capture(tiny(), "x" * 300, layers=[0], max_tokens=256)) == 256


@pytest.mark.parametrize(
    ("number", "message"), [(float("nan"), "layer 1: got NaN or infinity"), (1e9, "keys of layer 1: got numbers up to")]
)
def test_numbers_that_float16_cannot_hold_are_refused(number: float, message: str) -> None:
    lm = tiny()
    implementation = lm.model.config._attn_implementation
    with torch.no_grad():
        lm.model.model.layers[1].self_attn.k_proj.weight.fill_(number)
    with pytest.raises(errors.KVVizError, match=message):
        kvviz.capture(lm, PROMPT)
    assert lm.model.config._attn_implementation == implementation
