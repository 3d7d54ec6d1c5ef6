"""Every method on SmolLM2: in `generate` and in plain `model.generate`, with a correct ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvviz

pytestmark = [pytest.mark.slow, pytest.mark.model]
BUDGET, PROMPT, STEPS = 136, 260, 6


@pytest.fixture(scope="module")
def ids(lm, prose):
    return lm.encode(prose)[:, :PROMPT]


@pytest.mark.parametrize("name", kvviz.methods.names())
def test_generate_and_plain_transformers_agree(lm, ids, name):
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
    if ledger.dense_layers == tuple(range(30)):
        assert ledger.attended == PROMPT + generated
        return
    method = kvviz.methods.create(name, budget=BUDGET)
    selections_per_head = 3 if method.group == "each" else 1
    assert 0 < ledger.attended <= selections_per_head * BUDGET + generated
    if method.kind in ("eviction", "merging"):
        all_bytes = 30 * 2 * 3 * PROMPT * 64 * 4  # layers, keys and values, KV heads, tokens, head_dim, float32
        assert sum(ledger.kept_bytes.values()) < 0.85 * all_bytes, "dropped tokens are still kept"
