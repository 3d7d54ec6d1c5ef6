"""Expected attention against its closed form in float64, and the closed form against sampled future queries."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.methods.rotation import Rotation
from tests.methods.eviction_reference import DIM, SHAPES, context, tensors
from tests.tiny_models import letters_tokenizer, make, prompt

ROTATIONS = {
    "halves": Rotation(tuple(100.0 ** (-pair / 8) for pair in range(8))),
    "interleaved": Rotation(tuple(100.0 ** (-pair / 8) for pair in range(8)), "interleaved", 1.25),
    "a part": Rotation((1.0, 0.1, 0.01)),
    "none": Rotation(()),
}


def matrix(rotation, position):
    """The paper's rotation matrix R of a position, [D, D]: identity for the channels without RoPE."""
    turning = np.eye(DIM)
    for pair, frequency in enumerate(rotation.frequencies):
        half = rotation.dim // 2
        one, two = (pair, pair + half) if rotation.layout == "halves" else (2 * pair, 2 * pair + 1)
        cos, sin = np.cos(position * frequency), np.sin(position * frequency)
        turning[np.ix_([one, two], [one, two])] = rotation.scaling * np.array([[cos, -sin], [sin, cos]])
    return turning


def expected_scores(q, k, v, *, rotation, n_kv_heads, group, scale, start=0, sinks=4, future=512, epsilon=0.02):
    """Scores of each row's tokens: queries [Q, n, D] of the positions from `start` on, keys and values [H, N, D]."""
    q, k, v = (np.asarray(part, dtype=np.float64) for part in (q, k, v))
    new, per_kv = q.shape[1], q.shape[0] // n_kv_heads
    average = np.mean([matrix(rotation, start + new + ahead) for ahead in range(future)], axis=0)
    rows = []
    for head in range(q.shape[0]):
        plain = [np.linalg.inv(matrix(rotation, start + i)) @ q[head, i] for i in range(new) if start + i >= sinks]
        mean, covariance = np.mean(plain, axis=0), np.cov(np.array(plain).T, bias=True)
        mean, covariance = average @ mean, average @ covariance @ average.T
        logits = [scale * mean @ key + scale**2 * key @ covariance @ key / 2 for key in k[head // per_kv, sinks:]]
        exponentials = np.exp(np.array(logits) - max(logits))
        rows.append(exponentials / exponentials.sum())
    if group != "each":
        rows = [getattr(np, group)(rows[h * per_kv : (h + 1) * per_kv], axis=0) for h in range(n_kv_heads)]
    per_row = len(rows) // n_kv_heads
    return [(row + epsilon) * np.linalg.norm(v[number // per_row, sinks:], axis=-1) for number, row in enumerate(rows)]


def best(scores, count, sinks=4):
    ranked = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[: count - sinks]
    return [*range(sinks), *sorted(place + sinks for place in ranked)]


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize(("shape", "group"), [("mha", "mean"), ("grouped", "max"), ("grouped", "each"), ("mqa", "sum")])
def test_kept_tokens_and_scores_are_those_of_the_closed_form(shape, group, rotation):
    heads = SHAPES[shape]
    q, k, v = tensors(*heads, 90)
    q[:, :, :4] += 30.0  # sinks are outliers, and must not matter
    layer = context(*heads, details=True, rotation=ROTATIONS[rotation])
    method = kvviz.methods.create("expected_attention", budget=30, group=group, future=40)
    state = method.build(layer, q, k, v)
    reference = expected_scores(
        q[0], k[0], v[0], rotation=ROTATIONS[rotation], n_kv_heads=heads[1], group=group, scale=layer.scale, future=40
    )
    assert state.kept[0].tolist() == [best(scores, 30) for scores in reference]
    for row, scores in enumerate(reference):
        chosen = state.kept[0, row, 4:].numpy() - 4
        assert np.allclose(state.scores[0, row, 4:].numpy(), scores[chosen], rtol=1e-3)


def test_the_closed_form_is_the_mean_over_sampled_future_queries():
    """Without RoPE there is nothing to average: E[exp(q·k)] over many normal queries is what the method computes."""
    rng = np.random.default_rng(1)
    spread = rng.normal(size=(DIM, DIM)) * 0.2
    queries = rng.normal(size=(200_000, DIM)) @ spread + rng.normal(size=DIM) * 0.5
    keys = rng.normal(size=(1, 1, 12, DIM))
    q, k = (torch.tensor(part, dtype=torch.float32) for part in (queries[None, None], keys))
    method = kvviz.methods.create("expected_attention", budget=6, sinks=0, value_norm="none")
    layer = context(1, 1, rotation=Rotation(()))
    state = method.whole(dataclasses.replace(layer, details=True), k, k)
    state.length = len(queries)  # of which 12 tokens were kept
    scores = method.rank(state, q, k)[0, 0].numpy()
    sampled = np.exp(queries @ keys[0, 0].T * layer.scale).mean(0)
    assert np.allclose(scores, sampled / sampled.sum(), rtol=0.02)


def test_without_spread_only_the_mean_query_counts():
    q, k, v = tensors(6, 2, 90)
    method = kvviz.methods.create("expected_attention", budget=30, sinks=0, spread="none", value_norm="none")
    state = method.build(context(6, 2, rotation=Rotation(())), q, k, v)
    logits = torch.einsum("hgd,hld->hgl", q[0].mean(1).unflatten(0, (2, 3)), k[0]) * 0.3
    expected = logits.softmax(-1).mean(1).topk(30).indices.sort(-1).values
    assert torch.equal(state.kept[0], expected)


def test_a_later_prompt_is_ranked_by_its_own_queries_at_its_own_positions():
    rotation = ROTATIONS["halves"]
    layer = context(6, 2, rotation=rotation)
    method = kvviz.methods.create("expected_attention", budget=30, future=40)
    q, k, v = tensors(6, 2, 60)
    state = method.build(layer, q, k, v)
    q2, k2, v2 = tensors(6, 2, 25, seed=9)
    kept = [[*row, *range(60, 85)] for row in state.kept[0].tolist()]
    state = method.continue_prompt(state, q2, k2, v2)
    all_k, all_v = torch.cat([k, k2], 2)[0], torch.cat([v, v2], 2)[0]
    for head in range(2):
        rows = slice(3 * head, 3 * head + 3)
        k_kept, v_kept = all_k[head, kept[head]][None], all_v[head, kept[head]][None]
        (scores,) = expected_scores(
            q2[0, rows], k_kept, v_kept, rotation=rotation, n_kv_heads=1, group="mean", scale=0.3, start=60, future=40
        )
        assert state.kept[0, head].tolist() == [kept[head][place] for place in best(scores, 30)]


def test_pads_of_heads_that_keep_fewer_tokens_get_no_attention():
    """As AdaKV leaves them: a head's scores are those of its own tokens, as if there were no pads."""
    rotation = ROTATIONS["halves"]
    method = kvviz.methods.create("adakv(expected_attention)", budget=30, future=40)
    q, k, v = tensors(6, 2, 60)
    state = method.build(context(6, 2, rotation=rotation), q, k, v)
    rows = [[position for position in row if position >= 0] for row in state.kept[0].tolist()]
    assert sum(map(len, rows)) == 2 * 30
    assert len(rows[0]) != len(rows[1])
    padded = state.kept[0].tolist()
    q2, k2, v2 = tensors(6, 2, 25, seed=9)
    state.append_prompt(k2, v2)
    scores = method.rank(state, q2, state.tokens.take_keys(state.kept))[0].numpy()
    all_k, all_v = torch.cat([k, k2], 2)[0], torch.cat([v, v2], 2)[0]
    for head, row in enumerate(rows):
        own = [*row, *range(60, 85)]
        (expected,) = expected_scores(
            q2[0, 3 * head : 3 * head + 3], all_k[head, own][None], all_v[head, own][None],
            rotation=rotation, n_kv_heads=1, group="mean", scale=0.3, start=60, future=40,
        )  # fmt: skip
        tokens = [place for place, position in enumerate([*padded[head], *range(60, 85)]) if position >= 0]
        assert np.allclose(scores[head, tokens[4:]], expected, rtol=1e-3)


def test_a_short_prompt_is_kept_whole():
    for length in (1, 3, 4, 5):
        q, k, v = tensors(6, 2, length)
        method = kvviz.methods.create("expected_attention", budget=8)
        state = method.build(context(6, 2, rotation=Rotation((1.0,))), q, k, v)
        assert state.kept[0].tolist() == [list(range(length))] * 2


def test_layers_without_known_rope_are_refused():
    q, k, v = tensors(6, 2, 40)
    method = kvviz.methods.create("expected_attention", budget=16)
    with pytest.raises(InvalidInputError, match="expected_attention: got layer 1, whose RoPE is not known"):
        method.build(context(6, 2), q, k, v)


def test_in_a_model_and_on_its_trace_the_same_tokens_stay():
    """The trace carries the RoPE: what replay keeps of a prompt is what the model's cache keeps, up to float16."""
    model, ids = make("llama"), prompt(120)
    kvviz.attach(model)
    method = kvviz.methods.create("expected_attention", budget=40)
    cache = kvviz.SelectiveCache(model, method)
    with torch.no_grad():
        model(ids[:, :-8], past_key_values=cache)
    trace = kvviz.capture(kvviz.LanguageModel(model, letters_tokenizer()), ids)
    recording = kvviz.replay(trace, method, queries=8)
    for index, layer in enumerate(cache.selective_layers):
        kept = layer.states[0].kept[0]
        replayed = recording.indices(0, index)
        for head in range(2):
            same = set(kept[head].tolist()) & set(replayed[head].tolist())
            assert len(same) >= 38
