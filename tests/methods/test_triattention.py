"""TriAttention against its series as loops, on any RoPE, and long generations within its budget."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods import triattention
from kvviz.methods.rotation import Rotation
from tests.methods import generated
from tests.methods.buffered_reference import BufferedSession
from tests.methods.eviction_reference import (
    SHAPES,
    close,
    context,
    feed_prompt,
    feed_token,
    rows_attended,
    tensors,
)

LLAMA = Rotation(tuple(100.0 ** (-pair / 8) for pair in range(8)))
ROTATIONS = {
    "llama": LLAMA,
    "half of the channels": Rotation(LLAMA.frequencies[::2]),
    "interleaved, extended": Rotation(LLAMA.frequencies, "interleaved", 1.3),
    "none": Rotation(()),
}


def complex_pairs(vector, position, rotation):
    """The pairs of a vector after RoPE, as complex numbers before it, and the channels without RoPE."""
    count = len(rotation.frequencies)
    plain = []
    for pair, frequency in enumerate(rotation.frequencies):
        a, b = (pair, pair + count) if rotation.layout == "halves" else (2 * pair, 2 * pair + 1)
        turned = complex(vector[a], vector[b])
        plain.append(turned * cmath.exp(-1j * position * frequency) / rotation.scaling)
    return np.array(plain), np.asarray(vector[2 * count :])


class TriSession(BufferedSession):
    rotation, farthest, terms, protects_prompt = LLAMA, 64, "both", False

    def ranked(self, row, positions):
        evictable = positions[self.sinks : len(positions) - self.recent]
        room = self.size - self.room - self.recent
        first = self.prompt_length_now if self.protects_prompt and self.prompt_length_now <= room else 0
        free = [position for position in evictable if position >= first]
        if not free:
            return [0.0] * len(positions)
        per_head = []
        for head in self.heads(row):
            series = [self.series(head, position) for position in free]
            mean, spread = np.mean(series), max(np.std(series), 1e-6)
            per_head.append([(value - mean) / spread for value in series])
        standard = dict(zip(free, self.reduce(np.array(per_head)), strict=True))
        return [standard.get(position, np.inf if position in evictable else 0.0) for position in positions]

    @property
    def prompt_length_now(self):
        return self.prompt_length if self.decoding else self.length

    decoding = False

    def prompt(self, queries, keys, values):
        self.decoding = False
        output = super().prompt(queries, keys, values)
        self.decoding = True
        return output

    def series(self, head, position):
        queries = [complex_pairs(q, at, self.rotation) for at, q in enumerate(self.queries[head])]
        centre, rest = (np.mean([query[part] for query in queries], axis=0) for part in (0, 1))
        norm = np.mean([np.abs(query[0]) for query in queries], axis=0)
        kv_head = head // (self.n_heads // self.n_kv_heads)
        key, key_rest = complex_pairs(self.keys[kv_head, position], position, self.rotation)
        now = len(queries)  # the position of the next token
        offsets = [2**power for power in range(40) if 2**power <= self.farthest]
        distance, concentration = 0.0, 0.0
        for pair, frequency in enumerate(self.rotation.frequencies):
            phase = cmath.phase(centre[pair]) - cmath.phase(key[pair])
            amplitude = abs(centre[pair]) * abs(key[pair]) * self.rotation.scaling**2
            waves = [math.cos(frequency * (now + offset - position) + phase) for offset in offsets]
            distance += amplitude * sum(waves) / len(waves)
            concentration += (norm[pair] - abs(centre[pair])) * abs(key[pair]) * self.rotation.scaling**2
        distance += rest @ key_rest
        return {"both": distance + concentration, "distance": distance, "norm": concentration}[self.terms]


def session_for(method, layer, group):
    session = TriSession(
        layer.n_heads, layer.n_kv_heads, group, layer.scale, size=method.budget, buffer=method.buffer,
        recent=max(method.recent, int(method.generated == "within")), sinks=method.sinks,
        fixed=method.generated == "within",
    )  # fmt: skip
    session.rotation = layer.rotation
    for name in ("farthest", "terms", "protects_prompt"):
        setattr(session, name, getattr(method, name))
    return session


def centred(tensor, seed=0):
    """Queries around one centre per head, as in real models."""
    generator = torch.Generator().manual_seed(seed)
    return 0.5 * tensor + torch.randn((1, tensor.shape[1], 1, tensor.shape[3]), generator=generator)


@pytest.mark.parametrize(
    ("shape", "group", "rotation", "fields"),
    [
        ("mha", "max", "llama", {"farthest": 1000}),
        ("grouped", "max", "interleaved, extended", {"buffer": 5, "sinks": 2}),
        ("grouped", "mean", "half of the channels", {"recent": 6}),
        ("grouped", "each", "llama", {"terms": "norm"}),
        ("mqa", "sum", "none", {"buffer": 1}),
        ("mqa", "max", "llama", {"terms": "distance", "farthest": 1}),
    ],
)
@pytest.mark.parametrize("generated", ["within", "on_top"])
def test_a_session_of_three_prompts(generated, shape, group, rotation, fields):
    """Prompts attend to the kept tokens and themselves, steps to the kept tokens, both as in the reference."""
    layer_context = context(*SHAPES[shape], rotation=ROTATIONS[rotation])
    fields = {"budget": 30, "group": group, "generated": generated, "farthest": 64, **fields}
    method = kvviz.methods.create("triattention", **fields)
    layer, session, seed = LayerCache(layer_context, method), session_for(method, layer_context, group), 0
    for length, steps in ((60, 8), (20, 5), (9, 40)):
        seed += 1
        q, k, v = tensors(*SHAPES[shape], length, seed)
        q = centred(q)
        assert close(feed_prompt(layer, q, k, v)[0], session.prompt(q[0], k[0], v[0])), f"prompt of {length}"
        for step in range(steps):
            seed += 1
            q, k, v = tensors(*SHAPES[shape], 1, seed)
            q = centred(q)
            output, expected = feed_token(layer, q, k, v)[0], session.step(q[0, :, 0], k[0], v[0])
            assert rows_attended(layer) == session.seen, f"step {step} after the prompt of {length}"
            assert close(output, expected)
    assert session.rounds >= 3 * session.rows, "each prompt was followed by a round"


def test_a_prompt_that_leaves_room_is_protected():
    method = kvviz.methods.create("triattention", preset="official", budget=40, buffer=10, farthest=64)
    layer_context = context(6, 2, rotation=LLAMA)
    for length, protected in ((29, True), (30, False)):
        layer, session = LayerCache(layer_context, method), session_for(method, layer_context, "max")
        q, k, v = tensors(6, 2, length)
        feed_prompt(layer, q, k, v)
        session.prompt(q[0], k[0], v[0])
        for step in range(60):
            q, k, v = tensors(6, 2, 1, seed=step + 1)
            feed_token(layer, q, k, v)
            session.step(q[0, :, 0], k[0], v[0])
            assert rows_attended(layer) == session.seen, f"step {step}"
        assert all(set(range(length)) <= set(row) for row in rows_attended(layer)) == protected


def test_the_score_is_the_mean_logit_of_queries_at_the_centre():
    """If all queries before RoPE are equal, the series is exact: the logit of that query at the future positions."""
    generator = torch.Generator().manual_seed(3)
    centre, key = torch.randn(16, generator=generator), torch.randn(16, generator=generator)
    layer_context = context(1, 1, rotation=LLAMA)

    def at(vector, position):
        a, b = vector[:8].double(), vector[8:].double()
        angle = position * torch.tensor(LLAMA.frequencies, dtype=torch.float64)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])

    queries = torch.stack([at(centre, place) for place in range(50)]).float()[None, None]
    keys = torch.stack([at(key, place) for place in range(50)]).float()[None, None]
    method = kvviz.methods.create("triattention", budget=100, farthest=8)
    state = method.build(layer_context, queries, keys, keys)
    expected = [
        sum(float(at(centre, 50 + ahead) @ at(key, place)) for ahead in (1, 2, 4, 8)) / 4 for place in range(50)
    ]
    assert np.allclose(method._series(state, keys)[0, 0], expected, atol=1e-4)


def test_blocks_of_queries_add_up(monkeypatch):
    method = kvviz.methods.create("triattention", budget=100)
    q, k, v = tensors(6, 2, 90)
    whole = method.build(context(6, 2, rotation=LLAMA), q, k, v)
    monkeypatch.setattr(triattention, "QUERY_BLOCK", 7)
    blocks = method.build(context(6, 2, rotation=LLAMA), q, k, v)
    assert torch.allclose(whole.query_sum, blocks.query_sum, atol=1e-5)
    assert torch.allclose(whole.norm_sum, blocks.norm_sum, atol=1e-5)


@settings(max_examples=40)
@given(
    st.sampled_from([1, 63, 100, 1000]), st.sampled_from(["random", "zero", "constant", "four"]),
    st.sampled_from(["mean", "max", "sum", "each"]), st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    st.integers(0, 9), st.integers(0, 20), st.integers(2, 60), st.integers(1, 200), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_any_prompt_and_budget(length, keys, group, heads, sinks, recent, free, buffer, protects_prompt, seed):
    q, k, v = tensors(*heads, length, seed)
    k = {"random": k, "zero": k * 0, "constant": k * 0 + 1, "four": k[:, :, torch.arange(length) % 4]}[keys]
    budget = sinks + recent + free
    method = kvviz.methods.create(
        "triattention", budget=budget, sinks=sinks, recent=recent, buffer=buffer, group=group,
        protects_prompt=protects_prompt,
    )  # fmt: skip
    layer = LayerCache(context(*heads, rotation=LLAMA), method)
    feed_prompt(layer, q, k, v)
    for step in range(4):
        feed_token(layer, *tensors(*heads, 1, seed + step + 1))
        end = length + step + 1
        for row in rows_attended(layer):
            assert row == sorted(set(row))
            assert len(row) <= budget
            always = {*range(min(sinks, length)), *range(max(end - max(recent, 1), 0), end)}
            assert always <= set(row) <= set(range(end))


def test_two_thousand_generated_tokens_stay_within_the_budget():
    seen = generated.generate(kvviz.methods.create("triattention", budget=64, buffer=16))
    generated.assert_bounded(seen, 64)
    assert min(seen.attended[100:]) == 49  # a round leaves 48, and the step adds its own token


@pytest.mark.model
def test_the_series_foretells_a_real_models_logits(lm, prose):
    """Of half a text, it knows the mean logits of the other half's queries; the term of the norms alone does not."""
    trace = kvviz.capture(lm, lm.encode(prose)[:, :1024], layers=[3, 14, 25])
    for index in (3, 14, 25):
        queries, keys = (torch.tensor(part[index]).float()[None] for part in (trace.queries, trace.keys))
        layer_context = context(9, 3, head_dim=64, rotation=trace.rotations[index])
        halves = [queries[:, :, :512], keys[:, :, :512], keys[:, :, :512]]
        later = (queries[0, :, 512:].mean(1)[:, None] @ keys[0, :, :512].repeat_interleave(3, 0).mT)[:, 0]
        found = {}
        for terms in ("both", "distance", "norm"):
            method = kvviz.methods.create("triattention", budget=2048, terms=terms, farthest=512)
            series = method._series(method.build(layer_context, *halves), halves[1])[0]
            found[terms] = np.mean([np.corrcoef(series[head], later[head])[0, 1] for head in range(9)])
        assert found["distance"] > 0.8, index
        assert found["both"] > 0.7, index
        assert found["norm"] < 0, index


def test_an_unknown_rope_is_refused():
    method = kvviz.methods.create("triattention", budget=32)
    with pytest.raises(kvviz.InvalidInputError, match="RoPE is not known"):
        method.build(context(6, 2), *tensors(6, 2, 10))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"farthest": 0}, "farthest"),
        ({"buffer": 0}, "buffer"),
        ({"terms": "none"}, "terms"),
        ({"budget": 1}, "at least 2"),
    ],
)
def test_fields_out_of_range(fields, match):
    with pytest.raises((kvviz.InvalidInputError, kvviz.UnknownNameError), match=match):
        kvviz.methods.create("triattention", **fields)
