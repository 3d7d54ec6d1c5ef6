"""KeyDiff against its definition as loops in float64: blocks of a prompt, decode steps and later prompts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvviz
from kvviz.cache.layer_cache import LayerCache
from tests.methods.eviction_reference import SHAPES, context, feed_prompt, feed_token, rows_attended, tensors

BUDGET = 24


class Definition:
    """One KV head: positions `kept`, and the keys of all tokens so far."""

    def __init__(self, sinks, recent, block):
        self.sinks, self.recent, self.block = sinks, recent, block
        self.keys, self.kept = [], []

    def drop_to(self, count, recent):
        """Drop the kept tokens most similar to the mean direction, all at once."""
        if len(self.kept) <= count:
            return
        directions = [self.keys[p] / np.linalg.norm(self.keys[p]) for p in self.kept]
        mean = np.sum(directions, axis=0) / len(directions)
        similarity = [float(direction @ mean / np.linalg.norm(mean)) for direction in directions]
        droppable = range(self.sinks, len(self.kept) - recent)
        most_similar = sorted(droppable, key=lambda place: (-similarity[place], -place))
        dropped = set(most_similar[: len(self.kept) - count])
        self.kept = [p for place, p in enumerate(self.kept) if place not in dropped]

    def prompt(self, keys):
        candidates = self.kept + list(range(len(self.keys), len(self.keys) + len(keys)))
        self.keys += list(np.asarray(keys, dtype=np.float64))
        self.kept, rest = candidates[:BUDGET], candidates[BUDGET:]
        block = self.block or max(len(rest), 1)
        for start in range(0, len(rest), block):
            self.kept = self.kept + rest[start : start + block]
            self.drop_to(BUDGET, max(self.recent, 1))

    def step(self, key):
        self.drop_to(BUDGET - 1, max(self.recent, 1) - 1)
        self.kept = [*self.kept, len(self.keys)]
        self.keys.append(np.asarray(key, dtype=np.float64))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fields", [{"block": 7}, {"block": 16, "recent": 5, "sinks": 3}, {"block": 0}], ids=str)
def test_a_session_of_three_prompts(shape, fields):
    method = kvviz.methods.create("keydiff", budget=BUDGET, **fields)
    layer = LayerCache(context(*SHAPES[shape]), method)
    heads = [Definition(fields.get("sinks", 0), fields.get("recent", 0), method.block) for _ in range(SHAPES[shape][1])]
    seed = 0
    for length, steps in ((90, 40), (30, 10), (5, 70)):
        seed += 1
        q, k, v = tensors(*SHAPES[shape], length, seed)
        feed_prompt(layer, q, k, v)
        for head, definition in enumerate(heads):
            definition.prompt(k[0, head])
        assert layer.states[0].kept[0].tolist() == [definition.kept for definition in heads]
        for step in range(steps):
            seed += 1
            q, k, v = tensors(*SHAPES[shape], 1, seed)
            feed_token(layer, q, k, v)
            for head, definition in enumerate(heads):
                definition.step(k[0, head, 0])
            assert rows_attended(layer) == [definition.kept for definition in heads], f"step {step} after {length}"


def test_query_heads_of_a_group_keep_what_their_kv_head_keeps():
    q, k, v = tensors(6, 2, 100)
    kept = {
        group: kvviz.methods.create("keydiff", budget=BUDGET, group=group).build(context(6, 2), q, k, v).kept
        for group in ("mean", "each")
    }
    assert torch.equal(kept["each"], kept["mean"].repeat_interleave(3, dim=1))


def test_no_query_is_asked_for():
    q, k, v = tensors(6, 2, 100)
    method = kvviz.methods.create("keydiff", budget=BUDGET)
    assert not method.needs_queries
    with_queries, without = (method.build(context(6, 2), part, k, v).kept for part in (q, q[:, :, :0]))
    assert torch.equal(with_queries, without)


def test_an_outlier_outlives_the_crowd():
    """Keys in one direction but for one token in the middle: it is the last to go."""
    rng = np.random.default_rng(0)
    keys = np.ones((1, 1, 300, 16)) + 0.1 * rng.normal(size=(1, 1, 300, 16))
    keys[0, 0, 150] = -1 * np.ones(16)
    k = torch.tensor(keys, dtype=torch.float32)
    method = kvviz.methods.create("keydiff", budget=8, block=32)
    state = method.build(context(1, 1), k[:, :, :0], k, k)
    assert 150 in state.kept[0, 0].tolist()


def test_the_preset_of_kvpress_ranks_the_prompt_at_once_and_keeps_what_is_generated():
    _, k, v = tensors(6, 2, 100)
    method = kvviz.methods.create("keydiff", preset="kvpress", budget=BUDGET)
    state = method.build(context(6, 2), k[:, :, :0], k, v)
    for head in range(2):
        directions = torch.nn.functional.normalize(k[0, head], dim=-1)
        similarity = torch.nn.functional.cosine_similarity(k[0, head], directions.mean(0)[None], dim=-1)
        assert state.kept[0, head].tolist() == sorted(similarity.topk(BUDGET, largest=False).indices.tolist())
    state = method.extend(state, *tensors(6, 2, 1, seed=3))
    assert state.kept.shape[-1] == BUDGET + 1
