"""What became of a token, against its definition token by token; and everything that counts tokens by it."""

from __future__ import annotations

import itertools

import numpy as np

from kvviz import metrics
from kvviz.metrics import Verdict
from tests.synthetic import recording


def verdict(attended, oracle, always, merged):
    if attended:
        return Verdict.AGREED if oracle else Verdict.KEPT if always else Verdict.WASTED
    if oracle:
        return Verdict.MERGED_AWAY if merged else Verdict.MISSED
    return Verdict.UNMARKED


def test_every_case_is_what_its_definition_says():
    cases = np.array(list(itertools.product([False, True], repeat=4)))  # [16, 4]
    found = metrics.agreement(cases[:, 0], cases[:, 1], always=cases[:, 2], merged=cases[:, 3])
    assert found.dtype == np.uint8
    assert found.tolist() == [verdict(*case) for case in cases]
    plain = metrics.agreement(cases[:, 0], cases[:, 1])
    assert plain.tolist() == [verdict(*case[:2], False, False) for case in cases]


def test_masks_of_different_shapes_meet():
    attended, oracle = np.eye(3, dtype=bool), np.array([True, True, False])
    found = metrics.agreement(attended, oracle, merged=[[True], [False], [False]])
    assert found.shape == (3, 3)
    assert found[0].tolist() == [Verdict.AGREED, Verdict.MERGED_AWAY, Verdict.UNMARKED]
    assert found[2].tolist() == [Verdict.MISSED, Verdict.MISSED, Verdict.WASTED]


def test_a_recording_tells_the_same_as_its_positions():
    made = recording()
    for step in range(made.steps):
        found = made.agreement(step, 3)
        assert found.shape == (2, made.visible(step))
        for row in range(2):
            mine, true = (set(rows[row].tolist()) - {-1} for rows in (made.indices(step, 3), made.oracle(step, 3)))
            wanted = [verdict(place in mine, place in true, False, False) for place in range(made.visible(step))]
            assert found[row].tolist() == wanted
