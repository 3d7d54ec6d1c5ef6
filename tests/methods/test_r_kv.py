"""R-KV against its definition as loops, the rounds in which it evicts, and long generations within its budget."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.layer_cache import LayerCache
from kvviz.methods import r_kv
from tests.methods import generated
from tests.methods.buffered_reference import BufferedSession
from tests.methods.eviction_reference import (
    SHAPES,
    close,
    context,
    feed_prompt,
    feed_token,
    rows_attended,
    softmax,
    tensors,
)


class RKVSession(BufferedSession):
    mix, kernel, threshold, spared, shields_first = 0.1, 7, 0.5, 1, False

    def ranked(self, row, positions):
        return [
            self.mix * important - (1 - self.mix) * redundant
            for important, redundant in zip(
                self.importance(row, positions), self.redundancy(row, positions), strict=True
            )
        ]

    def importance(self, row, positions):
        before = positions[: len(positions) - self.recent]
        if not before:
            return [0.0] * len(positions)
        queries = [self.queries[head][-self.recent :] for head in self.heads(row)]
        weights = []
        for i in range(len(queries[0])):
            logits = [self.logits(h, queries[place][i], before) for place, h in enumerate(self.heads(row))]
            weights.append(softmax(self.reduce(np.array(logits))))
        mean, half = np.mean(weights, axis=0), self.kernel // 2
        pooled = [max(mean[max(place - half, 0) : place + half + 1]) for place in range(len(before))]
        return pooled + [0.0] * self.recent

    def redundancy(self, row, positions):
        keys = self.keys[row // (self.rows // self.n_kv_heads), positions]
        lengths = np.linalg.norm(keys, axis=-1)
        charged = np.zeros(len(positions))
        for i, key in enumerate(keys):
            similarity = [
                0.0 if i == j or 0 in (lengths[i], lengths[j]) else key @ other / (lengths[i] * lengths[j])
                for j, other in enumerate(keys)
            ]
            similar = [j for j in range(len(keys)) if similarity[j] > self.threshold]
            uncharged = similar[len(similar) - min(self.spared, len(similar)) :]
            if self.shields_first and not similar:
                uncharged = [0]
            for j in range(len(keys)):
                charged[j] += 0.0 if j in uncharged else similarity[j] / len(keys)
        return softmax(charged)


def session_for(method, layer, group):
    session = RKVSession(
        layer.n_heads, layer.n_kv_heads, group, layer.scale, size=method.budget, buffer=method.buffer,
        recent=method.recent, sinks=method.sinks, softcap=layer.softcap, fixed=method.generated == "within",
    )  # fmt: skip
    for field in ("mix", "kernel", "threshold", "spared", "shields_first"):
        setattr(session, field, getattr(method, field))
    return session


def repetitive(tensor, seed):
    """Keys near one of six directions, so that many are similar."""
    generator = torch.Generator().manual_seed(6)
    directions = torch.randn((6, tensor.shape[-1]), generator=generator)
    which = torch.randint(0, 6, tensor.shape[:3], generator=torch.Generator().manual_seed(seed))
    return directions[which] + 0.4 * tensor


@pytest.mark.parametrize(
    ("shape", "group", "fields"),
    [
        ("mha", "max", {}),
        ("grouped", "max", {"preset": "official", "buffer": 5}),
        ("grouped", "mean", {"mix": 0.5, "buffer": 3, "sinks": 2}),
        ("grouped", "each", {"spared": 3, "kernel": 1}),
        ("mqa", "sum", {"spared": 0, "threshold": 0.3}),
        ("mqa", "each", {"preset": "official", "recent": 1, "buffer": 1}),
    ],
)
@pytest.mark.parametrize("generated", ["within", "on_top"])
def test_a_session_of_three_prompts(generated, shape, group, fields):
    """Prompts attend to the kept tokens and themselves, steps to the kept tokens, both as in the reference."""
    layer_context = context(*SHAPES[shape], softcap=2.0 if group == "max" else None)
    method = kvviz.methods.create("r_kv", **{"budget": 40, "group": group, "generated": generated, **fields})
    layer, session, seed = LayerCache(layer_context, method), session_for(method, layer_context, group), 0
    for length, steps in ((90, 12), (35, 8), (9, 70)):
        seed += 1
        q, k, v = tensors(*SHAPES[shape], length, seed)
        k = repetitive(k, seed)
        assert close(feed_prompt(layer, q, k, v)[0], session.prompt(q[0], k[0], v[0])), f"prompt of {length}"
        for step in range(steps):
            seed += 1
            q, k, v = tensors(*SHAPES[shape], 1, seed)
            k = repetitive(k, seed)
            output, expected = feed_token(layer, q, k, v)[0], session.step(q[0, :, 0], k[0], v[0])
            assert rows_attended(layer) == session.seen, f"step {step} after the prompt of {length}"
            assert close(output, expected)
    assert session.rounds >= 3 * session.rows, "each prompt was followed by a round"


def test_a_short_prompt_evicts_only_while_decoding():
    """Fewer queries than the window has tokens, at first; then rounds of half of what the window leaves."""
    method = kvviz.methods.create("r_kv", budget=30, recent=10)
    layer, session = LayerCache(context(6, 2), method), session_for(method, context(6, 2), "max")
    q, k, v = tensors(6, 2, 4)
    feed_prompt(layer, q, k, v)
    session.prompt(q[0], k[0], v[0])
    counts = []
    for step in range(90):
        q, k, v = tensors(6, 2, 1, seed=step + 1)
        k = repetitive(k, step)
        feed_token(layer, q, k, v)
        session.step(q[0, :, 0], k[0], v[0])
        assert rows_attended(layer) == session.seen, f"step {step}"
        counts.append(len(session.seen[0]))
    assert counts == [*range(5, 31), *list(range(21, 31)) * 10][:90]


def test_the_latest_of_several_repetitions_stays():
    """Six different keys come up again and again; attention is equal, so that redundancy alone decides."""
    directions = torch.eye(16)[:6]
    keys = directions[torch.arange(60) % 6].expand(1, 2, -1, -1).clone()
    queries, values = torch.zeros(1, 6, 60, 16), torch.randn(1, 2, 60, 16)
    method = kvviz.methods.create("r_kv", budget=16, recent=4, buffer=6)  # a round leaves the window and six tokens
    state = method.build(context(6, 2), queries, keys, values)
    # The last of each six is charged with nothing; of the ones before, which are next, the earliest four stay.
    assert state.kept[0].tolist() == [[48, 49, 50, 51, 54, 55, 56, 57, 58, 59]] * 2


def test_blocks_of_the_similarity_matrix_are_its_rows(monkeypatch):
    method = kvviz.methods.create("r_kv", spared=2)
    keys = repetitive(torch.randn(2, 3, 100, 16), 1)
    whole = method._redundancy(keys)
    for block in (1, 7, 99):
        monkeypatch.setattr(r_kv, "ROW_BLOCK", block)
        assert torch.allclose(method._redundancy(keys), whole, atol=1e-7)


@settings(max_examples=40)
@given(
    st.sampled_from([1, 63, 100, 1000]), st.sampled_from(["random", "zero", "constant", "four"]),
    st.sampled_from(["mean", "max", "sum", "each"]), st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    st.integers(0, 9), st.integers(1, 20), st.integers(1, 60), st.integers(1, 200), st.integers(0, 99),
)  # fmt: skip
def test_any_prompt_and_budget(length, keys, group, heads, sinks, recent, free, buffer, seed):
    q, k, v = tensors(*heads, length, seed)
    k = {"random": k, "zero": k * 0, "constant": k * 0 + 1, "four": k[:, :, torch.arange(length) % 4]}[keys]
    budget = sinks + recent + free
    method = kvviz.methods.create("r_kv", budget=budget, sinks=sinks, recent=recent, buffer=buffer, group=group)
    layer = LayerCache(context(*heads), method)
    feed_prompt(layer, q, k, v)
    counts = []
    for step in range(4):
        feed_token(layer, *tensors(*heads, 1, seed + step + 1))
        end = length + step + 1
        for row in rows_attended(layer):
            assert row == sorted(set(row))
            assert {*range(min(sinks, length)), *range(max(end - recent, 0), end)} <= set(row) <= set(range(end))
        counts.append({len(row) for row in rows_attended(layer)})
    assert all(len(count) == 1 for count in counts)
    assert max(max(count) for count in counts) <= budget
    assert counts[-1] == {min(length + 4, *counts[-1])}


def test_two_thousand_generated_tokens_stay_within_the_budget():
    seen = generated.generate(kvviz.methods.create("r_kv", budget=64, buffer=16))
    generated.assert_bounded(seen, 64)
    assert min(seen.attended[100:]) == 49  # a round leaves 48, and the step adds its own token


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"recent": 0}, "recent"),
        ({"buffer": 0}, "buffer"),
        ({"kernel": 4}, "kernel.*odd"),
        ({"mix": 1.5}, "mix"),
        ({"threshold": -0.5}, "threshold"),
        ({"spared": -1}, "spared"),
        ({"budget": 8}, "at least 9"),
    ],
)
def test_fields_out_of_range(fields, match):
    with pytest.raises(kvviz.InvalidInputError, match=match):
        kvviz.methods.create("r_kv", **fields)
