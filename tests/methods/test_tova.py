"""TOVA against its definition as loops in float64: what is kept after prompts and dropped at each step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.layer_cache import LayerCache
from tests.methods.eviction_reference import SHAPES, context, feed_prompt, feed_token, rows_attended, tensors
from tests.tiny_models import make, prompt

BUDGET = 24


class Definition:
    """One layer as the paper defines it: row r keeps the positions `kept[r]`, ranked by the last query's weights."""

    def __init__(self, n_heads, n_kv_heads, group, heads, sinks, scale=0.3, softcap=None):
        self.n_heads, self.n_kv_heads, self.group, self.heads = n_heads, n_kv_heads, group, heads
        self.rows = n_heads if group == "each" else n_kv_heads
        self.sinks, self.scale, self.softcap = sinks, scale, softcap
        self.keys, self.scores = [[] for _ in range(n_kv_heads)], []
        self.kept = [[] for _ in range(self.rows)]

    def append(self, keys):
        for head, vectors in enumerate(np.asarray(keys, dtype=np.float64)):
            self.keys[head] += list(vectors)

    def rank(self, query):
        """Scores of each row's kept tokens for a query [Q, D]."""
        per_row, per_kv = self.n_heads // self.rows, self.n_heads // self.n_kv_heads
        self.scores = []
        for row in range(self.rows):
            of_heads = []
            for head in range(row * per_row, (row + 1) * per_row):
                logits = [self.scale * float(self.keys[head // per_kv][p] @ query[head]) for p in self.kept[row]]
                if self.softcap:
                    logits = [self.softcap * np.tanh(logit / self.softcap) for logit in logits]
                exponentials = np.exp(np.array(logits) - max(logits))
                of_heads.append(exponentials / exponentials.sum())
            self.scores.append(of_heads[0] if self.group == "each" else getattr(np, self.group)(of_heads, axis=0))
        if self.heads == "shared":
            self.scores = [np.mean(self.scores, axis=0)] * self.rows

    def keep(self, count, recent):
        for row in range(self.rows):
            kept, scores = self.kept[row], self.scores[row]
            while len(kept) > count:
                droppable = range(self.sinks, len(kept) - recent)
                lowest = min(droppable, key=lambda place: (scores[place], -place))
                kept = kept[:lowest] + kept[lowest + 1 :]
                scores = np.delete(scores, lowest)
            self.kept[row], self.scores[row] = kept, scores

    def prompt(self, queries, keys):
        start = len(self.keys[0])
        self.append(keys)
        self.kept = [kept + list(range(start, len(self.keys[0]))) for kept in self.kept]
        self.rank(np.asarray(queries[:, -1], dtype=np.float64))
        self.keep(BUDGET, recent=1)

    def step(self, query, key):
        self.keep(BUDGET - 1, recent=0)
        self.append(key)
        self.kept = [[*kept, len(self.keys[0]) - 1] for kept in self.kept]
        self.rank(np.asarray(query, dtype=np.float64))


@pytest.mark.parametrize("heads", ["shared", "separate"])
@pytest.mark.parametrize(
    ("shape", "group", "sinks"),
    [("mha", "mean", 0), ("grouped", "mean", 0), ("grouped", "each", 2), ("mqa", "max", 3), ("mqa", "each", 0)],
)
def test_a_session_of_three_prompts(shape, group, sinks, heads):
    softcap = 2.0 if group == "max" else None
    method = kvviz.methods.create("tova", budget=BUDGET, group=group, heads=heads, sinks=sinks)
    layer = LayerCache(context(*SHAPES[shape], softcap=softcap), method)
    definition = Definition(*SHAPES[shape], group, heads, sinks, softcap=softcap)
    seed = 0
    for length, steps in ((60, 40), (30, 10), (5, 70)):
        seed += 1
        q, k, v = tensors(*SHAPES[shape], length, seed)
        feed_prompt(layer, q, k, v)
        definition.prompt(q[0], k[0])
        assert layer.states[0].kept[0].tolist() == definition.kept
        for step in range(steps):
            seed += 1
            q, k, v = tensors(*SHAPES[shape], 1, seed)
            feed_token(layer, q, k, v)
            definition.step(q[0, :, 0], k[0])
            assert rows_attended(layer) == definition.kept, f"step {step} after the prompt of {length}"
            assert {len(row) for row in definition.kept} == {BUDGET}


def test_shared_heads_keep_the_same_tokens_and_separate_ones_do_not():
    q, k, v = tensors(6, 2, 100)
    kept = {}
    for heads in ("shared", "separate"):
        method = kvviz.methods.create("tova", budget=20, heads=heads)
        kept[heads] = method.build(context(6, 2), q, k, v).kept[0].tolist()
    assert kept["shared"][0] == kept["shared"][1]
    assert kept["separate"][0] != kept["separate"][1]


def test_on_top_drops_nothing_while_decoding_and_keeps_no_weights():
    q, k, v = tensors(6, 2, 50)
    method = kvviz.methods.create("tova", budget=20, generated="on_top")
    state = method.build(context(6, 2), q, k, v)
    prompt_tokens = state.kept.tolist()
    for step in range(30):
        state = method.extend(state, *tensors(6, 2, 1, seed=step + 1))
    assert state.votes is None
    expected = [[*row, *range(50, 80)] for row in prompt_tokens[0]]
    assert state.kept[0].tolist() == expected


def test_in_a_model_all_layers_share_by_their_own_weights():
    """The tokens kept after a prompt, from the attention weights that transformers returns."""
    model, ids = make("llama"), prompt(60)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    model.set_attn_implementation("sdpa")
    kvviz.attach(model)
    cache = kvviz.SelectiveCache(model, kvviz.methods.create("tova", budget=16))
    with torch.no_grad():
        model(ids, past_key_values=cache)
    for layer, weights in zip(cache.selective_layers, attentions, strict=True):
        last = weights[0, :, -1].mean(0)
        last[-1] = torch.inf  # the prompt's last token stays
        expected = sorted(last.topk(16).indices.tolist())
        assert layer.states[0].kept[0].tolist() == [expected] * 2
