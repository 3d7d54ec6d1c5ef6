"""Every method on SmolLM2's first layers: in `generate` and in plain `model.generate`, with a correct ledger."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

import kvviz

pytestmark = [pytest.mark.slow, pytest.mark.model]
BUDGET, PROMPT, STEPS, LAYERS = 136, 260, 6, 8


@pytest.fixture(scope="module")
def first_layers(lm):
    config = copy.deepcopy(lm.model.config)
    config.num_hidden_layers = LAYERS
    model = type(lm.model)(config).eval()
    assert not model.load_state_dict(lm.model.state_dict(), strict=False).missing_keys
    return kvviz.LanguageModel(model, lm.tokenizer)


@pytest.fixture(scope="module")
def ids(lm, prose):
    return lm.encode(prose)[:, :PROMPT]


@pytest.mark.parametrize("name", kvviz.methods.names())
def test_generate_and_plain_transformers_agree(first_layers, ids, name):
    lm = first_layers
    out = kvviz.generate(lm, ids, name, BUDGET, max_new_tokens=STEPS)
    kvviz.attach(lm.model)
    try:
        cache = kvviz.SelectiveCache(lm.model, kvviz.methods.create(name, budget=BUDGET))
        plain = lm.model.generate(ids, past_key_values=cache, max_new_tokens=STEPS, do_sample=False)
    finally:
        kvviz.detach(lm.model)
    assert out.token_ids == plain[0, PROMPT:].tolist()
    ledger = out.ledger
    assert replace(ledger, kept_bytes={}) == replace(cache.ledger(), kept_bytes={})  # spare room may differ
    generated = len(out.token_ids) - 1
    if ledger.dense_layers == tuple(range(LAYERS)):
        assert ledger.attended == PROMPT + generated
        return
    method = kvviz.methods.create(name, budget=BUDGET)
    selections_per_head = 3 if method.group == "each" else 1
    assert 0 < ledger.attended <= selections_per_head * BUDGET + generated
    if method.kind in ("eviction", "merging"):
        token_bytes = LAYERS * 2 * 3 * 64 * 4  # layers, keys and values, KV heads, head_dim, float32
        kept = max(method.keeps(state).shape[-1] for layer in cache.selective_layers for state in layer.states)
        most = max(0.85 * PROMPT, kept + generated + 64)  # there is room for 64 more
        assert sum(ledger.kept_bytes.values()) <= most * token_bytes, "dropped tokens are still kept"
