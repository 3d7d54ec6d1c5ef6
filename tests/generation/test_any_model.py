"""A trial with tiny models of many architectures: a full budget gives the own text of each, in every dtype and use."""

from __future__ import annotations

import pytest
import torch

import kvviz
from tests.tiny_models import ARCHITECTURES, EXACT_LAYERS, MORE_ARCHITECTURES, letters_tokenizer, make, prompt

NEW = 10
ALL = [*ARCHITECTURES, *MORE_ARCHITECTURES]
QUICK = {"llama", "gemma2", "gemma3n", "qwen3_next", "bamba"}  # attention of each kind
architectures = pytest.mark.parametrize(
    "architecture", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL]
)


def loaded(architecture, dtype=torch.float32):
    model = make(architecture).to(dtype)
    model.generation_config.eos_token_id = None  # so that all rows of a batch write as much
    return kvviz.LanguageModel(model, letters_tokenizer(), architecture)


def own(lm, ids, **options):
    """What transformers writes without kvviz."""
    out = lm.model.generate(ids, max_new_tokens=NEW, do_sample=False, **options)
    return out[:, ids.shape[1] :].tolist()


def written(lm, ids, method, **options):
    fields = {} if method == "full" else {"budget": 512, "dense_layers": 0}
    return kvviz.generate(lm, ids, method, max_new_tokens=NEW, **fields, **options)


@architectures
@pytest.mark.parametrize("method", ["full", "quest"])
def test_a_full_budget_gives_the_models_own_text(architecture, method):
    lm, ids = loaded(architecture), prompt(60)
    out = written(lm, ids, method)
    assert out.token_ids == own(lm, ids)[0]
    assert out.ledger.exact_layers == EXACT_LAYERS.get(architecture, ())


@architectures
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(architecture, dtype):
    """Full attention gives the model's own tokens. A method's kernel rounds differently, which may decide a tie."""
    lm, ids = loaded(architecture, dtype), prompt(60)
    expected = own(lm, ids)[0]
    assert written(lm, ids, "full").token_ids == expected
    found = written(lm, ids, "quest").token_ids
    if found != expected:
        first = next(place for place in range(NEW) if found[place] != expected[place])
        before = torch.cat([ids, torch.tensor([expected[:first]], dtype=torch.int64)], dim=1)
        with torch.no_grad():
            logits = lm.model(before).logits[0, -1].float()
        gap = logits[expected[first]] - logits[found[first]]
        assert gap <= 8 * torch.finfo(dtype).eps * logits.abs().max(), "not a tie"


@architectures
def test_padding(architecture):
    lm, rows = loaded(architecture), [prompt(40, seed=5), prompt(60, seed=6)]
    padded = torch.cat([torch.cat([torch.zeros(1, 20, dtype=torch.int64), rows[0]], dim=1), rows[1]])
    expected = [own(lm, ids)[0] for ids in rows]
    assert [out.token_ids for out in written(lm, padded, "quest")] == expected
    assert [out.token_ids for out in written(lm, [row[0] for row in rows], "full")] == expected


@architectures
def test_a_prompt_in_chunks(architecture, monkeypatch):
    lm, ids = loaded(architecture), prompt(60)
    whole = kvviz.capture(lm, ids)
    expected = own(lm, ids)[0]
    monkeypatch.setattr("kvviz.generation.generating.PREFILL_CHUNK", 16)
    monkeypatch.setattr("kvviz.generation.capturing.PREFILL_CHUNK", 16)
    assert written(lm, ids, "quest").token_ids == expected
    chunked = kvviz.capture(lm, ids)
    assert chunked.layers == whole.layers
    for layer in whole.layers:
        assert abs(chunked.keys[layer].astype(float) - whole.keys[layer]).max() < 0.01


@architectures
def test_the_stream_and_the_score_agree_with_the_text(architecture):
    lm, ids = loaded(architecture), prompt(60)
    pieces = []
    out = written(lm, ids, "full", stream=pieces.append)
    assert "".join(pieces) == out.text
    [expected] = own(lm, ids)
    with torch.no_grad():
        logits = lm.model(torch.cat([ids, torch.tensor([expected])], dim=1)).logits[0, 59:-1].double()
    logprobs = logits.log_softmax(-1)[range(NEW), expected]
    answer = lm.tokenizer.decode(expected)
    if lm.tokenizer(answer).input_ids == expected:  # without special tokens, whose text is several tokens
        score = kvviz.score(lm, ids, answer, "quest", budget=512, dense_layers=0)
        assert torch.allclose(torch.tensor(score.logprobs), logprobs, atol=2e-2)


@architectures
def test_transformers_generate_with_a_cache_samples_and_streams(architecture):
    lm, ids = loaded(architecture), prompt(60)
    options = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0}
    torch.manual_seed(1)
    expected = lm.model.generate(ids, **options)
    kvviz.attach(lm.model)
    torch.manual_seed(1)
    cache = kvviz.SelectiveCache(lm.model, kvviz.methods.create("quest", budget=512, dense_layers=0))
    assert torch.equal(lm.model.generate(ids, past_key_values=cache, **options), expected)
