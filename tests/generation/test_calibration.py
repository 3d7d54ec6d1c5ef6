"""The threshold of Squeezed Attention: the sparsity that the method then has, counted in its selections."""

from __future__ import annotations

import numpy as np
import pytest

import kvviz
from kvviz.trace import Geometry
from tests import tiny_models

LENGTH, QUERIES = 600, 30


def synthetic_trace(length=LENGTH, spread=1.5):
    """Keys in groups, and queries near one of their group's directions; heads differ in how sharp attention is."""
    rng = np.random.default_rng(3)
    geometry = Geometry(4, 6, 2, 16, 4096)
    queries, keys, values = {}, {}, {}
    for layer in (1, 3):
        centres = rng.normal(size=(2, 40, 16))
        members = rng.integers(40, size=length)
        keys[layer] = (centres[:, members] + 0.4 * rng.normal(size=(2, length, 16))).astype(np.float16)
        sharpness = np.linspace(0.3, spread, 6)[:, None, None] * (1 + layer)
        aims = centres[np.arange(6) // 3][:, rng.integers(40, size=length)]
        queries[layer] = (sharpness * (aims + 0.3 * rng.normal(size=(6, length, 16)))).astype(np.float16)
        values[layer] = rng.normal(size=(2, length, 16)).astype(np.float16)
    words = [f" {position}" for position in range(length)]
    ids = np.arange(length, dtype=np.int64)
    return kvviz.Trace("synthetic", geometry, words, ids, queries, keys, values)


def shares_attended_to(trace, method):
    """Share of the keys before the last queries that each head attends to in a decode step, [layers · steps, R]."""
    recording = kvviz.replay(trace, method, queries=QUERIES)
    prompt = len(trace) - QUERIES
    cells = [recording.indices(step, layer) for layer in trace.layers for step in range(QUERIES)]
    return np.array([[len({p for p in row if 0 <= p < prompt}) / prompt for row in cell.tolist()] for cell in cells])


@pytest.mark.parametrize("sparsity", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("fields", [{}, {"preset": "official"}, {"group": "max", "recent": 20, "cluster_share": 0.1}])
def test_the_method_has_the_sparsity_that_was_asked_for(sparsity, fields):
    if fields.get("preset") == "official":
        sparsity -= 0.1  # its recent window alone is 18 % of the fixed context
    trace = synthetic_trace()
    method = kvviz.calibrated_squeezed_attention(trace, sparsity=sparsity, queries=QUERIES, **fields)
    shares = shares_attended_to(trace, method)
    assert 1 - shares.mean() == pytest.approx(sparsity, abs=0.02)
    by_head = shares.mean(0)
    assert by_head.max() - by_head.min() > 0.005, "one threshold for all heads, so they differ"


def test_a_model_is_calibrated_on_its_prompt():
    lm, ids = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer()), tiny_models.prompt(200)
    method = kvviz.calibrated_squeezed_attention(lm, ids, 0.6, queries=20, dense_layers=1)
    assert method == kvviz.calibrated_squeezed_attention(kvviz.capture(lm, ids), None, 0.6, queries=20, dense_layers=1)
    assert 0 < method.threshold < 1
    assert method.dense_layers == 1
    assert kvviz.generate(lm, ids, method=method, max_new_tokens=3).token_ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparsity": 1.0}, "sparsity: got 1.0"),
        ({"sparsity": 0.99, "sinks": 30}, r"sparsity: got 0\.99; wanted at most 0\.940"),
        ({"queries": 0}, "queries: got 0; wanted 1 to 599 of 600 tokens"),
        ({"queries": 600}, "queries: got 600"),
        ({"threshold": 0.1}, "got threshold 0.1"),
        ({"prompt": "text"}, "got a prompt and a Trace"),
        ({"dense_layers": 4}, "got 4 dense layers"),
    ],
)
def test_invalid_input_is_refused(options, message):
    with pytest.raises(kvviz.InvalidInputError, match=message):
        kvviz.calibrated_squeezed_attention(synthetic_trace(), **options)
