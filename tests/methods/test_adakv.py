"""AdaKV: the sum of the heads' budgets, which tokens each head keeps, and what becomes of them while decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.methods import checks, create, get
from kvviz.methods.checks.steps import CONTEXT, build_state, decode_step, random_tensors

SINKS, WINDOW = 4, 16


def made(name: str = "adakv", budget: int = 64, **fields):
    return create(name, budget=budget, sinks=SINKS, recent=WINDOW, **fields)


def uneven(n_heads: int = 6, n_kv_heads: int = 3, length: int = 300):
    """Queries, keys and values whose KV heads attend to few, to some, and to many tokens."""
    queries, keys, values = random_tensors(n_heads, n_kv_heads, length, seed=3)
    sharpness = torch.linspace(0.2, 3, n_kv_heads)[:, None, None]
    return queries, keys * sharpness, values


def kept(state) -> list[set[int]]:
    return [set(row[row >= 0].tolist()) for row in state.kept[0]]


def expected(scores: np.ndarray, free: int, floor: int) -> list[set[int]]:
    """Which of each head's tokens stay, by loops: the floor of each head, then the best of the layer."""
    heads, length = scores.shape
    ordered = [
        sorted(range(length), key=lambda token, head=head: (-scores[head, token], token)) for head in range(heads)
    ]
    chosen = [set(order[:floor]) for order in ordered]
    rest = [(-scores[head, t], head, t) for head in range(heads) for t in range(length) if t not in chosen[head]]
    for _, head, token in sorted(rest)[: heads * (free - floor)]:
        chosen[head].add(token)
    return chosen


@pytest.mark.parametrize("floor", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("group", ["mean", "each"])
def test_it_keeps_the_best_tokens_of_all_heads(floor, group):
    tensors = uneven()
    method = made(floor=floor, group=group)
    state = build_state(method, *tensors)
    plain = create("snapkv", budget=64, sinks=SINKS, recent=WINDOW, group=group)
    whole = replace(plain, budget=300)
    scores = plain.rank(build_state(whole, *tensors), *tensors[:2])[0].numpy()
    free, between = 64 - SINKS - WINDOW, slice(SINKS, 300 - WINDOW)
    wanted = expected(scores[:, between], free, int(floor * free))
    always = {*range(SINKS), *range(300 - WINDOW, 300)}
    assert kept(state) == [{SINKS + token for token in tokens} | always for tokens in wanted]
    if floor == 1.0:
        assert kept(state) == kept(build_state(plain, *tensors))
    else:
        assert len({len(tokens) for tokens in kept(state)}) > 1


@given(
    heads=st.sampled_from([(4, 4), (6, 2), (3, 1), (6, 3)]),
    length=st.integers(30, 200),
    budget=st.integers(SINKS + WINDOW, 220),
    floor=st.floats(0, 1),
    name=st.sampled_from(["adakv(snapkv)", "adakv(pyramidkv)", "adakv(h2o)"]),
    seed=st.integers(0, 5),
)
def test_the_sum_of_budgets_is_kept_exactly(heads, length, budget, floor, name, seed):
    n_heads, n_kv_heads = heads
    method = made(name, budget, floor=floor)
    state = build_state(method, *random_tensors(n_heads, n_kv_heads, length, batch=2, seed=seed))
    each = min(method.step_budget(state), length)
    assert (state.kept >= 0).sum((1, 2)).tolist() == [n_kv_heads * each] * 2
    least = SINKS + WINDOW + int(floor * (each - SINKS - WINDOW)) if each < length else length
    assert int((state.kept >= 0).sum(-1).min()) >= least


@pytest.mark.parametrize("name", ["adakv(h2o)", "adakv(snapkv)"])
def test_decoding_within_the_budget_keeps_the_sum(name):
    method = made(name, generated="within")
    state = build_state(method, *uneven())
    for number in range(100):
        state, selection = decode_step(method, state, 6, 3, seed=number)
        assert (selection.indices >= 0).sum((1, 2)).tolist() == [3 * 64]
        assert bool((selection.indices[..., -1] == 300 + number).all())


def test_a_pad_gets_no_weight_when_a_later_prompt_votes():
    """The later prompt's votes are those of a head with exactly the tokens that this head kept."""
    queries, keys, values = uneven(length=340)
    method = made(floor=0.0)
    first = [tensor[:, :, :300] for tensor in (queries, keys, values)]
    state = build_state(method, *first)
    tokens = kept(state)
    later = method.continue_prompt(state, *[tensor[:, :, 300:] for tensor in (queries, keys, values)])
    assert later.prompt_length == 340
    votes = []
    for head, before in enumerate(tokens):
        positions = [*sorted(before), *range(300, 340)]
        logits = (
            queries[0, 2 * head : 2 * head + 2, 340 - WINDOW :] @ keys[0, head, positions].T * CONTEXT.head_dim**-0.5
        )
        late = torch.tensor(positions) > torch.arange(340 - WINDOW, 340)[:, None]
        weights = logits.masked_fill(late, -torch.inf).softmax(-1).sum(1).mean(0)[:-WINDOW]
        pooled = torch.nn.functional.avg_pool1d(weights[None], 5, stride=1, padding=2)[0]
        votes.append(dict(zip(positions, pooled.tolist(), strict=False)))
    for head, staying in enumerate(kept(later)):
        ranked = [token for token in votes[head] if token >= SINKS]
        lost, left = [t for t in ranked if t not in staying], [t for t in ranked if t in staying]
        assert min((votes[head][t] for t in left), default=1) >= max((votes[head][t] for t in lost), default=0) - 1e-3


def test_the_recorded_run_of_a_model_keeps_the_sum(lm, prose):
    out = kvviz.generate(lm, prose[:3000], method="adakv", budget=96, max_new_tokens=3, record=True)
    layer = out.recording.layers[10]
    indices = out.recording.indices(0, layer)
    assert (indices >= 0).sum() == 3 * 97  # the step's own token is on top
    assert len(set((indices >= 0).sum(-1).tolist())) > 1


@pytest.mark.parametrize("name", ["adakv(pyramidkv)", "adakv(h2o)"])
def test_common_checks_over_other_methods(name):
    checks.run(get(name))


@pytest.mark.parametrize("name", ["adakv(quest)", "adakv(streaming_llm)", "adakv(centroidkv)"])
def test_only_evictions_by_score_have_head_budgets(name):
    with pytest.raises(InvalidInputError, match="whose heads may keep different numbers"):
        create(name)
