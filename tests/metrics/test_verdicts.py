"""The verdict on each token, against its definition token by token."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvviz import metrics
from kvviz.metrics import Verdict
from tests.synthetic import recording


def verdict(attended, oracle, always, merged):
    if attended:
        return Verdict.AGREED if oracle else Verdict.KEPT if always else Verdict.WASTED
    if oracle:
        return Verdict.MERGED_AWAY if merged else Verdict.MISSED
    return Verdict.UNMARKED


def test_every_case_follows_its_definition():
    cases = np.array(list(itertools.product([False, True], repeat=4)))  # [16, 4]
    verdicts = metrics.agreement(cases[:, 0], cases[:, 1], always=cases[:, 2], merged=cases[:, 3])
    assert verdicts.dtype == np.uint8
    assert verdicts.tolist() == [verdict(*case) for case in cases]
    plain = metrics.agreement(cases[:, 0], cases[:, 1])
    assert plain.tolist() == [verdict(*case[:2], False, False) for case in cases]


def test_masks_of_different_shapes_are_broadcast():
    attended, oracle = np.eye(3, dtype=bool), np.array([True, True, False])
    verdicts = metrics.agreement(attended, oracle, merged=[[True], [False], [False]])
    assert verdicts.shape == (3, 3)
    assert verdicts[0].tolist() == [Verdict.AGREED, Verdict.MERGED_AWAY, Verdict.UNMARKED]
    assert verdicts[2].tolist() == [Verdict.MISSED, Verdict.MISSED, Verdict.WASTED]


def test_a_recording_agrees_with_its_positions():
    run = recording()
    for step in range(run.steps):
        verdicts = run.agreement(step, 3)
        assert verdicts.shape == (2, run.visible(step))
        for row in range(2):
            chosen, best = (set(rows[row].tolist()) - {-1} for rows in (run.indices(step, 3), run.oracle(step, 3)))
            always = {*range(4), *range(run.prompt_length, run.visible(step))}  # sinks and generated tokens
            places = range(run.visible(step))
            expected = [verdict(place in chosen, place in best, place in always, False) for place in places]
            assert verdicts[row].tolist() == expected


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 4))
def test_tokens_that_are_always_attended_to_are_in_the_windows(unchosen, prompt, sinks):
    prompt = min(prompt, len(unchosen))
    expected = []
    for place, kept in enumerate(unchosen):
        sink = place < min(sinks, prompt)
        recent = place < prompt and all(unchosen[place:prompt])
        expected.append(place >= prompt or (kept and (sink or recent)))
    assert metrics.always_attended(unchosen, prompt_length=prompt, sinks=sinks).tolist() == expected


@given(st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
def test_the_window_starts_after_the_last_token_that_is_not_kept(kept):
    starts = metrics.window_starts(np.array(kept))
    assert starts.tolist() == [max((place + 1 for place in range(5) if not row[place]), default=0) for row in kept]
    assert metrics.window_starts(np.zeros((2, 0), bool)).tolist() == [0, 0]
