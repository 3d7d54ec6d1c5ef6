"""find_retrieval_heads: the mixture against NumPy, the prompts, what the gates learn, and a model left as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.attachment import attention_observer, attention_replaced
from kvviz.generation.retrieval_heads import mixed_attention, passkey_prompt, streaming_mask
from kvviz.models.encoding import fed_ids
from tests import tiny_models

TEXT = "".join(chr(97 + number % 26) + " ."[number % 3 == 0] for number in range(3000))
FEW = {"steps": 3, "lengths": (200, 220), "passkeys": 1, "words": 2, "sinks": 2, "recent": 8, "progress": False}


def tiny(name="llama", layers=4):
    return kvviz.LanguageModel(tiny_models.make(name, layers=layers), tiny_models.letters_tokenizer())


def last_states(lm, ids):
    with torch.no_grad():
        return lm.model.base_model(ids, use_cache=False).last_hidden_state[0]


def test_the_mask_by_loops():
    mask = streaming_mask(5, 12, 2, 3, torch.device("cpu"))[0, 0]
    for row in range(5):
        for key in range(12):
            query = 7 + row
            assert bool(mask[row, key]) == (key <= query and (key < 2 or query - key < 3))


@pytest.mark.parametrize("name", ["llama", "llama_mqa", "qwen3", "mistral", "gemma2", "gpt_neox"])
def test_one_layer_mixes_each_heads_outputs(name):
    """By softmax and masks in NumPy from the queries, keys and values of the first layer; a sliding layer keeps its own
    window, and Gemma 2 its soft cap."""
    lm, ids = tiny(name), tiny_models.prompt(40)
    gates = torch.rand(4, lm.geometry.n_kv_heads, generator=torch.Generator().manual_seed(0))
    seen, outputs = {}, {}

    def note(layer, query, key, value, scale, softcap):
        seen.setdefault(layer, (query[0].double(), key[0].double(), value[0].double(), scale, softcap))

    def noting(module, *args, **kwargs):
        output = mixed_attention(gates, 2, 6)(module, *args, **kwargs)
        outputs.setdefault(module.layer_idx, output[0].double())
        return output

    with torch.no_grad(), attention_observer(lm.model, note), attention_replaced(lm.model, noting):
        lm.model(ids)
    query, key, value, scale, softcap = (part.numpy() if torch.is_tensor(part) else part for part in seen[0])
    sliding = 16 if 0 in tiny_models.SLIDING_LAYERS.get(name, ()) else 1000
    for head in range(query.shape[0]):
        kv_head = head // (query.shape[0] // key.shape[0])
        logits = query[head] @ key[kv_head].T * (scale or query.shape[-1] ** -0.5)
        logits = logits if softcap is None else np.tanh(logits / softcap) * softcap
        parts = []
        for window, sinks in ((1000, 0), (6, 2)):
            visible = np.array(
                [[j <= i and i - j < sliding and (j < sinks or i - j < window) for j in range(40)] for i in range(40)]
            )
            weights = np.where(visible, np.exp(logits), 0)
            parts.append(weights / weights.sum(-1, keepdims=True) @ value[kv_head])
        gate = float(gates[0, kv_head])
        expected = gate * parts[0] + (1 - gate) * parts[1]
        np.testing.assert_allclose(outputs[0][:, head].numpy(), expected, atol=1e-5)


def test_gates_of_one_are_the_model_itself():
    lm, ids = tiny(), tiny_models.prompt(60)
    expected = last_states(lm, ids)
    with attention_replaced(lm.model, mixed_attention(torch.ones(4, 2), 2, 6)):
        assert torch.allclose(last_states(lm, ids), expected, atol=1e-5)
    with attention_replaced(lm.model, mixed_attention(torch.zeros(4, 2), 2, 6)):
        assert not torch.allclose(last_states(lm, ids), expected, atol=1e-2)
    assert torch.equal(last_states(lm, ids), expected), "the model's own attention is back"


def test_a_prompt_hides_each_passkey_and_repeats_it_last():
    lm = tiny()
    haystack = fed_ids(lm, TEXT)
    prompt = passkey_prompt(lm, haystack, 400, 3, 2, random.Random(0))
    assert prompt.ids.shape == (1, 400)
    text = "".join(lm.tokens(prompt.ids))
    for ordinal in ("first", "second", "third"):
        _, hidden, repeated = text.split(f"The {ordinal} passkey is: ")
        words = hidden.partition(".")[0]
        assert repeated.startswith(words)
    predicted = prompt.ids[0, prompt.answers + 1]
    assert "".join(lm.tokens(predicted)).split() == [
        word for part in text.rsplit("The ", 3)[1:] for word in part.partition(": ")[2].replace("?", " ").split()
    ]
    other = passkey_prompt(lm, haystack, 400, 3, 2, random.Random(1))
    assert not torch.equal(prompt.ids, other.ids)


def test_only_heads_that_change_the_answer_keep_their_gates():
    """All heads but one of a model are cut off from its output: their gates fall by the penalty alone."""
    lm = tiny(layers=2)
    width, shared = 8, 3
    with torch.no_grad():
        for layer in lm.model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
        columns = slice(1 * shared * width, 2 * shared * width)  # KV head 1 of layer 0
        lm.model.model.layers[0].self_attn.o_proj.weight[:, columns].normal_(std=0.5)
    found = kvviz.find_retrieval_heads(lm, TEXT, **FEW | {"steps": 40}, learning_rate=0.05, penalty=0.01)
    assert found.gates[0][1] > 0.8
    assert found.gates[0][0] == found.gates[1][0] == found.gates[1][1] == 0


def test_the_same_seed_finds_the_same_gates_and_tells_where_they_are_from():
    lm = tiny()
    first, second = (kvviz.find_retrieval_heads(lm, TEXT, **FEW) for _ in range(2))
    assert first == second
    assert first != kvviz.find_retrieval_heads(lm, TEXT, **FEW, seed=1)
    assert np.shape(first.gates) == (4, 2)
    assert (first.model, first.seed, first.settings["steps"]) == (lm.name, 0, 3)
    assert len(first.model_hash) == 16
    assert first.versions["torch"] == torch.__version__


def test_the_model_is_left_as_it_was_also_after_an_error(monkeypatch):
    lm = tiny()
    lm.model.requires_grad_(True)
    lm.model.lm_head.weight.requires_grad_(False)
    before = {name: (weight.clone(), weight.requires_grad) for name, weight in lm.model.named_parameters()}
    implementation = lm.model.config._attn_implementation
    calls = []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("interrupted")
        return streaming_mask(*args, **kwargs)

    kvviz.find_retrieval_heads(lm, TEXT, **FEW)
    monkeypatch.setattr("kvviz.generation.retrieval_heads.streaming_mask", failing)
    with pytest.raises(RuntimeError, match="interrupted"):
        kvviz.find_retrieval_heads(lm, TEXT, **FEW)
    assert lm.model.config._attn_implementation == implementation
    for name, weight in lm.model.named_parameters():
        old, trained = before[name]
        assert torch.equal(weight, old)
        assert weight.requires_grad == trained
        assert weight.grad is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"steps": 0}, "steps: got 0; wanted at least 1"),
        ({"recent": 0}, "recent: got 0"),
        ({"passkeys": 11}, "passkeys: got 11; wanted at most 10"),
        ({"lengths": (300, 200)}, "lengths"),
        ({"lengths": (300, 5000)}, "the model's 1024 positions"),
        ({"lengths": (20, 30)}, "a length of more than"),
        ({"penalty": float("nan")}, "penalty: got nan"),
    ],
)
def test_bad_settings_are_refused(fields, said):
    with pytest.raises(kvviz.InvalidInputError, match=said):
        kvviz.find_retrieval_heads(tiny(), TEXT, **FEW | fields)


def test_a_short_text_is_refused():
    with pytest.raises(kvviz.InvalidInputError, match="a text of 5 tokens"):
        kvviz.find_retrieval_heads(tiny(), "short", **FEW)
