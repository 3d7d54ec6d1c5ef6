"""RocketKV against its definition as loops: what stage 1 keeps, what stage 2 attends to, and what a step reads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.layer_cache import LayerCache
from tests.methods.eviction_reference import (
    SHAPES,
    SnapSession,
    close,
    context,
    feed_prompt,
    feed_token,
    rows_attended,
    softmax,
    tensors,
)


class RocketSession(SnapSession):
    pooling = "max"

    def __init__(self, method, layer, group):
        self.method = method
        super().__init__(
            layer.n_heads, layer.n_kv_heads, group, layer.scale, self.capacity, lambda _: method.observed,
            sinks=method.sinks, softcap=layer.softcap,
        )  # fmt: skip
        self.recent, self.kernel = method.observed, method.kernel

    def capacity(self, length):
        c = max(1, length / self.method.budget)
        share = min(0.8, 0.2 + 0.06 * math.log(c, 2)) if self.method.split is None else self.method.split
        return max(int(length / c**share), self.sinks + self.method.observed)

    def prompt(self, queries, keys, values):
        output = super().prompt(queries, keys, values)
        ratio = max(1, len(self.kept[0]) / self.method.budget)
        self.page = 1 if ratio < 2 else math.ceil(ratio**0.5)
        self.channels = max(1, min(16, round(16 * self.page / ratio)))
        return output

    def step(self, query, key, value):
        query = np.asarray(query, dtype=np.float64)
        self.append(key, value)
        output, self.seen = np.zeros(query.shape), []
        for row in range(self.rows):
            self.kept[row] = [*self.kept[row], self.length - 1]
            self.seen.append(self.chosen(row, query))
            for head in self.heads(row):
                output[head] = self.attended(head, query[head], self.seen[-1])
        return output

    def chosen(self, row, query):
        method, kept = self.method, self.kept[row]
        generated = self.length - self.prompt_length
        on_top = method.generated == "on_top"
        budget, window = (method.budget + generated, method.recent + generated) if on_top else (method.budget, 1)
        window = max(window, method.recent)
        if len(kept) <= budget:
            return kept
        scores = self.approximate(row, query)
        free = max(budget - self.sinks - window - int(method.sketch_share * method.budget), 0)
        between = range(self.sinks, len(kept) - window)
        best = sorted(between, key=lambda place: (-scores[place], place))[:free]
        return kept[: self.sinks] + [kept[place] for place in sorted(best)] + kept[len(kept) - window :]

    def approximate(self, row, query):
        keys = self.keys[row // (self.rows // self.n_kv_heads), self.kept[row]]
        heads = list(self.heads(row))
        largest = sorted(range(16), key=lambda c: (-sum(abs(query[head, c]) for head in heads), c))[: self.channels]
        weights = []
        for head in heads:
            scaling = self.scale / np.sqrt(np.abs(query[head, largest]).sum() / np.abs(query[head]).sum())
            logits = []
            for place in range(len(keys)):
                start = place // self.page * self.page
                page = keys[start : start + self.page]
                product = 0.0
                for c in largest:
                    upper = sum(query[h, c] for h in heads) > 0
                    product += query[head, c] * (page[:, c].max() if upper else page[:, c].min())
                logits.append(product * scaling)
            logits = np.array(logits)
            weights.append(softmax(logits if self.softcap is None else self.softcap * np.tanh(logits / self.softcap)))
        return self.reduce(np.array(weights))


@pytest.mark.parametrize(
    ("shape", "group", "fields"),
    [
        ("mha", "mean", {}),
        ("grouped", "mean", {"budget": 16, "sinks": 3, "recent": 4}),  # pages of two
        ("grouped", "max", {"budget": 8, "split": 0.1, "kernel": 1}),  # pages of three or four
        ("grouped", "each", {"preset": "official", "budget": 12, "split": 0.0}),  # stage 1 drops nothing
        ("mqa", "sum", {"budget": 20, "split": 1.0, "recent": 6}),  # stage 2 has nothing to do, except for new tokens
        ("mqa", "each", {"budget": 10, "observed": 5}),
    ],
)
@pytest.mark.parametrize("generated", ["within", "on_top"])
def test_a_session_of_three_prompts(generated, shape, group, fields):
    """Prompts attend to the kept tokens and themselves, steps to the best of them, both as in the reference."""
    layer_context = context(*SHAPES[shape], softcap=2.0 if group == "max" else None)
    fields = {"budget": 24, "observed": 9, "kernel": 5, "group": group, "generated": generated, **fields}
    method = kvviz.methods.create("rocketkv", **fields)
    layer, session, seed = LayerCache(layer_context, method), RocketSession(method, layer_context, group), 0
    for length, steps in ((120, 12), (35, 8), (9, 30)):
        seed += 1
        q, k, v = tensors(*SHAPES[shape], length, seed)
        assert close(feed_prompt(layer, q, k, v)[0], session.prompt(q[0], k[0], v[0])), f"prompt of {length}"
        (state,) = layer.states
        assert state.kept[0].tolist() == session.kept
        for step in range(steps):
            seed += 1
            q, k, v = tensors(*SHAPES[shape], 1, seed)
            output, expected = feed_token(layer, q, k, v)[0], session.step(q[0, :, 0], k[0], v[0])
            assert rows_attended(layer) == session.seen, f"step {step} after the prompt of {length}"
            assert close(output, expected)
    assert layer.store.complete == (method.split == 0.0)


def test_the_two_stages_share_the_compression():
    """A compression of 16 takes 2^(4 · 0.44) = 3.39 in stage 1; of the 4.72 left, pages of three take 3."""
    layer = context(6, 2, details=True)
    method = kvviz.methods.create("rocketkv", budget=100)
    q, k, v = tensors(6, 2, 1600)
    state = method.build(layer, q, k, v)
    assert state.kept.shape[-1] == method.capacity(1600) == 472
    assert (state.page_size, state.channels_read) == (3, 10)  # 16 · 3 / 4.72 = 10.2
    key_bytes = 2 * 16 * 4
    sketch = 472 // 3 * 10 * 2 * 4 + 472 % 3 * key_bytes
    assert state.read_bytes() == sketch
    assert abs(sketch - 100 * key_bytes) < 0.05 * 100 * key_bytes, "a step reads as much of the keys as it attends to"
    assert method.capacity(100) == method.capacity(60) + 40 == 100
    for split, kept in ((0.0, 1600), (0.5, 400), (1.0, 100)):
        assert replace(method, split=split).capacity(1600) == kept
    assert replace(method, budget=1, observed=1).capacity(10**6) == int(10**6 / 10**4.8), "at most 0.8"


def test_pages_are_numbered_and_told():
    layer = context(6, 2, details=True)
    method = kvviz.methods.create("rocketkv", budget=40, split=0.2)
    q, k, v = tensors(6, 2, 400)
    state = method.build(layer, q, k, v)
    q, k, v = tensors(6, 2, 1, seed=2)
    chosen = method.select(method.extend(state, q, k, v), q[:, :, 0])
    assert state.page_size > 1
    for head in range(2):
        pages = chosen.groups[0, head].tolist()
        assert pages[-1] == -1, "the newest token is not ranked"
        for position, page in zip(chosen.indices[0, head, :-1].tolist(), pages[:-1], strict=True):
            tokens = method.group_tokens(state, head, page).tolist()
            assert position in tokens
            assert len(tokens) == state.page_size
        assert method.group_tokens(state, head, 10**6).tolist() == []
    assert method.group_tokens(state, 0, -1).tolist() == []


@settings(max_examples=30)
@given(st.integers(2, 7), st.integers(16, 90), st.integers(0, 99))
def test_with_all_channels_a_page_bounds_the_logits_of_its_tokens(page_size, length, seed):
    """For one query head per KV head, the sketch's products are never below the exact ones, also in the tail."""
    layer = context(4, 4)
    q, k, v = tensors(4, 4, length, seed)
    state = kvviz.methods.create("rocketkv", budget=length).build(layer, q, k, v)
    state.sketch(page_size, 16)
    _, k_new, v_new = tensors(4, 4, 1, seed + 1)
    state.append(k_new, v_new)
    state.add(k_new)
    query = q[:, :, -1:]
    channels = torch.arange(16).expand(1, 4, -1)
    bounds = state.products(query[:, :, :], channels, query[:, :, 0] > 0)[:, :, 0]
    exact = (query @ torch.cat([k, k_new], 2).mT)[:, :, 0]
    assert bool((bounds >= exact - 1e-4).all())
    last = torch.cat([k, k_new], 2)[:, :, length // page_size * page_size :]  # the page of the newest token
    expected = torch.maximum(query * last.amax(2, keepdim=True), query * last.amin(2, keepdim=True)).sum(-1)
    assert torch.allclose(bounds[..., -1:], expected, atol=1e-4)


def test_two_thousand_steps_attend_to_the_budget():
    """Stage 1 keeps more than that, and all generated tokens."""
    method = kvviz.methods.create("rocketkv", budget=48, recent=4)
    layer = LayerCache(context(2, 1), method)
    feed_prompt(layer, *tensors(2, 1, 500))
    kept = method.capacity(500)
    assert layer.store.used == kept < 500
    for step in range(2000):
        feed_token(layer, *tensors(2, 1, 1, seed=step + 1))
        (row,) = rows_attended(layer)
        assert len(row) == 48
        assert row[-4:] == list(range(497 + step, 501 + step))
    assert layer.store.used == kept + 2000


def test_both_stages_keep_more_attention_than_either_alone():
    """At the same budget, in one layer of a recorded text: SnapKV only evicts, Quest only selects."""
    trace = kvviz.open_runs(live=False).trace("prose")
    (layer,) = trace.layers
    kept = {}
    for name, fields in {"rocketkv": {}, "snapkv": {"generated": "within"}, "quest": {}}.items():
        replayed = kvviz.replay(trace, kvviz.methods.create(name, budget=128, **fields), queries=64)
        kept[name] = np.mean([replayed.attention_mass(step, layer) for step in range(64)])
    assert kept["rocketkv"] > max(kept["snapkv"], kept["quest"]) + 0.02, kept


@settings(max_examples=40)
@given(
    st.sampled_from([1, 63, 100, 1000]), st.sampled_from(["random", "zero", "constant", "four"]),
    st.sampled_from(["mean", "max", "sum", "each"]), st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    st.integers(0, 9), st.integers(1, 20), st.integers(1, 60), st.integers(1, 80), st.integers(0, 99),
)  # fmt: skip
def test_any_prompt_and_budget(length, keys, group, heads, sinks, recent, free, observed, seed):
    q, k, v = tensors(*heads, length, seed)
    k = {"random": k, "zero": k * 0, "constant": k * 0 + 1, "four": k[:, :, torch.arange(length) % 4]}[keys]
    budget = sinks + recent + free
    method = kvviz.methods.create("rocketkv", budget=budget, sinks=sinks, recent=recent, observed=observed, group=group)
    layer = LayerCache(context(*heads), method)
    feed_prompt(layer, q, k, v)
    for step in range(3):
        feed_token(layer, *tensors(*heads, 1, seed + step + 1))
        end = length + step + 1
        for row in rows_attended(layer):
            assert row == sorted(set(row))
            assert len(row) == min(budget, end)
            assert {*range(min(sinks, length)), *range(max(end - recent, 0), end)} <= set(row) <= set(range(end))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"observed": 0}, "observed"),
        ({"kernel": 4}, "kernel.*odd"),
        ({"split": 1.5}, "split"),
        ({"sketch_share": 1.0}, "sketch_share"),
        ({"budget": 4, "sinks": 4}, "at least 5"),
    ],
)
def test_fields_out_of_range(fields, match):
    with pytest.raises(kvviz.InvalidInputError, match=match):
        kvviz.methods.create("rocketkv", **fields)
