"""What is fed after a prompt once more sees the whole prompt, nothing of other texts, and disturbs no running pass."""

from __future__ import annotations

import pytest
import torch

import kvviz
from kvviz.cache.attachment import attention_observer
from kvviz.errors import InvalidInputError
from tests.tiny_models import SLIDING_LAYERS, letters_tokenizer, make, prompt


def observed(model, ids):
    """Queries and keys by layer of one pass over `ids`."""
    seen = {}

    def note(layer, queries, keys, values, scale, softcap):
        seen[layer] = queries, keys, scale, softcap

    with torch.no_grad(), attention_observer(model, note):
        model(ids, use_cache=False)
    return seen


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "gpt_neox"])
def test_each_text_follows_the_prompt(name):
    """Queries and keys of each text are those of one pass over prompt and text, in all layers without a window."""
    model, ids = make(name), prompt(60)
    texts = [prompt(13, seed=2), prompt(7, seed=3)]
    cache = kvviz.SelectiveCache(model, "full")
    cache.prompt.ids = ids
    seen = []
    with attention_observer(model, lambda *args: pytest.fail("an outer observer saw the repetition")):
        cache.prompt.feed("test", texts, lambda *told: seen.append(told))
    layers = [layer for layer in range(4) if layer not in SLIDING_LAYERS.get(name, ())]
    assert [told[:2] for told in seen] == [(number, layer) for number in range(2) for layer in layers]
    whole = [observed(model, torch.cat([ids, text], dim=1)) for text in texts]
    for number, layer, queries, keys, scale, softcap in seen:
        of_layer = whole[number][layer]
        assert torch.allclose(queries, of_layer[0][:, :, 60:], atol=1e-4)
        assert torch.allclose(keys, of_layer[1], atol=1e-4)
        assert scale == pytest.approx(of_layer[2] or queries.shape[-1] ** -0.5)
        assert softcap == of_layer[3]


def test_generate_tells_the_prompt_and_how_to_encode_text():
    lm = kvviz.LanguageModel(make("llama"), letters_tokenizer())
    told = {}

    class Asking(kvviz.methods.get("snapkv")):
        def build(self, layer, queries, keys, values):
            told[layer.index] = layer.prompt
            return super().build(layer, queries, keys, values)

    kvviz.generate(lm, "a prompt of some letters", Asking(budget=64), max_new_tokens=2)
    known = told[0]
    assert known.ids.tolist() == lm.encode("a prompt of some letters").tolist()
    assert known.encode("text") == lm.tokenizer("text", add_special_tokens=False).input_ids


def test_an_unknown_prompt_is_refused():
    cache = kvviz.SelectiveCache(make("llama"), "full")
    with pytest.raises(InvalidInputError, match="mine: got a prompt of unknown model or tokens"):
        cache.prompt.feed("mine", [prompt(3)], lambda *told: None)
