"""All methods in a layer's cache, over 1,500 tokens and several prompts, against attention by hand."""

from __future__ import annotations

import math

import pytest
import torch

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods import checks
from kvviz.methods.base import LayerContext
from kvviz.methods.checks.steps import ROTATION

HEADS, KV_HEADS, DIM = 4, 2, 16
CONTEXT = LayerContext(5, 8, HEADS, KV_HEADS, DIM, DIM**-0.5, details=True, rotation=ROTATION)


def tokens(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, heads, count, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def by_hand(selection, query, keys, values):
    """Attention of each query head over its selection, one token at a time in float64."""
    rows = selection.indices.shape[1]
    outputs = []
    for head in range(HEADS):
        row, kv = head // (HEADS // rows), head // (HEADS // KV_HEADS)
        logits, vectors = [], []
        for slot, position in enumerate(selection.indices[0, row].tolist()):
            if position >= 0:
                bias = 0.0 if selection.bias is None else float(selection.bias[0, row, slot])
                logits.append(float(query[0, head].double() @ keys[0, kv, position].double()) * DIM**-0.5 + bias)
                vectors.append(values[0, kv, position].double())
        if selection.merged is not None:
            merged = selection.merged
            for index, degree in enumerate(merged.degree[0, kv].tolist()):
                if degree > 0:
                    logit = float(query[0, head].double() @ merged.keys[0, kv, index].double()) * DIM**-0.5
                    logits.append(logit + math.log(degree))
                    vectors.append(merged.values[0, kv, index].double())
        weights = torch.tensor(logits, dtype=torch.float64).softmax(0)
        output = weights @ torch.stack(vectors)
        correction = selection.value_correction
        if correction is not None:
            share = float(correction.share[0, head])
            output = (1 - share) * output + share * correction.values[0, kv].double()
        outputs.append(output)
    return torch.stack(outputs)[None]


SELECTING = [name for name in kvviz.methods.names() if not kvviz.methods.get(name)().is_dense(CONTEXT.index)]


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTING)
def test_long_sessions(name):
    """Three prompts, followed by 900, 40 and 40 decoded tokens; every 150th output is computed by hand."""
    method = checks.smallest(kvviz.methods.get(name))
    layer = LayerCache(CONTEXT, method)
    inputs = [tokens(0, 0)]
    for turn, (prompt, decoded) in enumerate(((400, 900), (150, 40), (2, 40))):
        inputs.append(tokens(prompt, seed=10 + turn))
        queries, keys, values = inputs[-1]
        layer.store.append(keys, values)
        layer.keep_queries(queries)
        layer.build()
        for step in range(decoded):
            inputs.append(tokens(1, seed=1000 * (turn + 1) + step))
            queries, keys, values = inputs[-1]
            layer.store.append(keys, values)
            output = layer.decode(queries[:, :, 0])
            if step % 150 == 13 or step == decoded - 1:
                _, past_keys, past_values = (torch.cat(parts, dim=2) for parts in zip(*inputs, strict=True))
                expected = by_hand(layer.last, queries[:, :, 0], past_keys, past_values)
                assert torch.allclose(output.double(), expected, atol=2e-5)
    (state,) = layer.states
    assert state.length == layer.store.length == 400 + 900 + 150 + 40 + 2 + 40
    assert state.prompt_length == state.length - 40
    if method.drops_tokens:
        kept = method.keeps(state).shape[-1]  # may be more than a step attends to
        assert layer.store.used <= max(method.step_budget(state), kept) + 64, "evicted tokens are still stored"
    else:
        assert layer.store.used == layer.store.length
