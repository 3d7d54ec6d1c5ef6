"""Twilight: the share p of the weights, against loops in NumPy; the keys in few bits; what always stays."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.methods import checks, create, get
from kvviz.methods.checks.steps import CONTEXT, build_state, decode_step, random_tensors
from kvviz.methods.twilight import quantised, restored, top_p


def exact_weights(tensors, step_seed: int, head: int) -> np.ndarray:
    """Softmax weights of a query head of the step with this seed over all 301 tokens, in float64."""
    step = random_tensors(6, 2, 1, seed=100 + step_seed)
    keys = torch.cat([tensors[1], step[1]], dim=2)[0, head // 3].double().numpy()
    logits = keys @ step[0][0, head, 0].double().numpy() * CONTEXT.head_dim**-0.5
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.85, 0.95, 0.99])
def test_it_reaches_its_p_within_one_percent_on_exact_weights(p):
    """The mass is at least p, at most 1 % more, and below p without the lightest token."""
    tensors = random_tensors(6, 2, 300, seed=1)
    method = create("twilight", over="oracle", budget=301, p=p, bits=None, group="each")
    _, selection = decode_step(method, build_state(method, *tensors), 6, 2, seed=0)
    for head in range(6):
        weights, row = exact_weights(tensors, 0, head), selection.indices[0, head]
        chosen = weights[row[row >= 0].numpy()]
        assert p <= chosen.sum()
        assert chosen.sum() < p + 0.01 or p < 0.5  # two tokens make up the first 11 % of one head
        optional = weights[[token for token in row.tolist() if 0 <= token < 300]]  # the step's own token always stays
        assert chosen.sum() - optional.min() < p


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(0, 64))
def test_top_p_takes_the_fewest(values, sixty_fourths):
    weights, p = torch.tensor(values, dtype=torch.float64), sixty_fourths / 64  # all sums are exact
    taken = top_p(weights[None], p, torch.zeros(1, len(values), dtype=torch.bool))[0].numpy()
    wanted, mass = set(), 0
    for place in sorted(range(len(values)), key=lambda place: (-values[place], place)):
        if mass >= p * sum(values):
            break
        wanted.add(place)
        mass += values[place]
    assert set(np.flatnonzero(taken)) == wanted


def test_it_prunes_what_the_selector_chose():
    """Every token is one of Quest's, the pages that it did not choose stay out, and the heads differ in number."""
    tensors = random_tensors(6, 2, 300, seed=1)
    quest, method = create("quest", budget=128), create("twilight(quest)", budget=128, p=0.8)
    _, candidates = decode_step(quest, build_state(quest, *tensors), 6, 2, seed=0)
    _, selection = decode_step(method, build_state(method, *tensors), 6, 2, seed=0)
    counts = []
    for head in range(2):
        chosen, before = selection.indices[0, head], candidates.indices[0, head]
        tokens = set(chosen[chosen >= 0].tolist())
        counts.append(len(tokens))
        assert tokens < set(before.tolist())
        assert 300 in tokens
        pages = selection.groups[0, head][chosen >= 0]
        assert bool(((pages == -1) | (pages == chosen[chosen >= 0] // 16)).all())
    assert counts[0] != counts[1]
    assert max(counts) < 128


def test_sinks_and_recent_window_stay_at_any_p():
    method = create("twilight(oracle)", budget=100, sinks=4, recent=8, p=0.0)
    _, selection = decode_step(method, build_state(method, *random_tensors(6, 2, 300)), 6, 2, seed=0)
    assert selection.indices[0].tolist() == [[0, 1, 2, 3, *range(293, 301)]] * 2


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("width", [16, 20, 64])
def test_the_keys_in_few_bits_are_those_of_numpy(bits, width):
    keys = torch.randn(2, 3, 50, width, generator=torch.Generator().manual_seed(0))
    keys[0, 0, 0] = 1.25  # equal numbers
    packed, scale, low = quantised(keys, bits)
    assert packed.nbytes == 2 * 3 * 50 * -(-width // 8) * bits
    numbers = keys.numpy()
    lowest = numbers.min(-1, keepdims=True).astype(np.float16)
    step = ((numbers.max(-1, keepdims=True) - lowest.astype(np.float32)) / (2**bits - 1)).astype(np.float16)
    with np.errstate(invalid="ignore", divide="ignore"):
        codes = np.rint(np.nan_to_num((numbers - lowest.astype(np.float32)) / step.astype(np.float32), posinf=0.0))
    wanted = codes.clip(0, 2**bits - 1) * step.astype(np.float32) + lowest.astype(np.float32)
    np.testing.assert_array_equal(restored(packed, scale, low, bits, width).numpy(), wanted)


def test_the_estimate_is_what_a_state_stores_and_every_step_reads():
    tensors = random_tensors(6, 2, 300)
    quest, method = create("quest", budget=128), create("twilight(quest)", budget=128)
    plain, state = build_state(quest, *tensors), build_state(method, *tensors)
    stored = 2 * 300 * (16 // 2 + 2 + 2)  # 4 bits per channel, scale and minimum
    assert state.metadata_bytes() - plain.metadata_bytes() == stored
    assert state.choosing_bytes() - plain.choosing_bytes() == stored


def test_more_bits_bring_it_closer_to_the_exact_choice():
    tensors = random_tensors(6, 2, 300, seed=5)
    exact = create("twilight(oracle)", budget=301, p=0.7, bits=None)
    _, wanted = decode_step(exact, build_state(exact, *tensors), 6, 2, seed=0)
    shared = []
    for bits in (1, 2, 4, 8):
        method = create("twilight(oracle)", budget=301, p=0.7, bits=bits)
        _, selection = decode_step(method, build_state(method, *tensors), 6, 2, seed=0)
        pairs = zip(selection.indices[0].tolist(), wanted.indices[0].tolist(), strict=True)
        shared.append(np.mean([len({*row} & {*best}) / len({*row} | {*best}) for row, best in pairs]))
    assert shared == sorted(shared)
    assert shared[-1] > 0.98


def test_a_model_attends_to_fewer_tokens_where_attention_is_concentrated(lm, prose):
    """Few tokens in some heads, many in others; with the mass that the estimate promises, within 2 %."""
    out = kvviz.generate(lm, prose[:3000], method="twilight(oracle)", budget=4096, p=0.9, max_new_tokens=2, record=True)
    recording = out.recording
    counts = [(recording.indices(0, layer) >= 0).sum(-1) for layer in recording.layers]
    assert np.min(counts) < 30
    assert np.max(counts) > 100
    assert recording.summary()["attention_mass"] > 0.88


@pytest.mark.parametrize("name", ["twilight(oracle)", "twilight(clusterkv)", "twilight(ctkvr)", "twilight(magicpig)"])
def test_common_checks_over_other_methods(name):
    checks.run(get(name))


@pytest.mark.parametrize("name", ["twilight(snapkv)", "twilight(full)", "twilight(centroidkv)", "twilight(minference)"])
def test_what_makes_no_choice_per_step_is_refused(name):
    with pytest.raises(InvalidInputError, match="a method that chooses at every step"):
        create(name)
