"""Every method gives the texts and selections recorded in data/selections/selections.npz (`make selections`).

With the processor and packages of the recording, they must be equal bit for bit. Others round differently: then 97 % of
the recorded indices must be equal in each case, and a warning says so.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

MAKE = Path(__file__).parents[2] / "data" / "selections" / "make.py"
LEAST = 0.97

_spec = importlib.util.spec_from_file_location("make_selections", MAKE)  # a script, not in a package
selections = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = selections  # where its dataclasses look up their annotations
_spec.loader.exec_module(selections)


@pytest.fixture(scope="module")
def recorded():
    return selections.load()


@pytest.fixture(scope="module")
def bit_for_bit(recorded) -> bool:
    """Whether this machine rounds like the one that made the file."""
    now = selections.environment()
    changes = [f"{name} {now[name]}, not {was}" for name, was in recorded.environment.items() if now[name] != was]
    if changes:
        message = f"selections compared to {LEAST:.0%}, not bit for bit; recorded with another {', '.join(changes)}"
        warnings.warn(message, stacklevel=1)
    return not changes


def test_every_method_and_preset_is_recorded(recorded):
    assert list(recorded.cases) == selections.cases(), "make selections"


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("name", selections.cases())
def test_texts_and_selections_equal_the_recorded_ones(lm, recorded, bit_for_bit, name):
    assert name in recorded.cases, "not recorded: make selections"
    before, threads = recorded.cases[name], torch.get_num_threads()
    with selections.reproducible():
        now = selections.run(lm, recorded.prompt, name)
    assert torch.get_num_threads() == threads
    agreement = before.agreement(now)
    if not bit_for_bit:
        assert agreement >= LEAST
        return
    assert (now.text, now.token_ids) == (before.text, before.token_ids)
    changed = [step for step, both in enumerate(zip(now.steps, before.steps, strict=True)) if len(set(both)) > 1]
    assert not changed, f"steps {changed} select other tokens; {agreement:.2%} of the indices are the same"
    assert np.array_equal(now.indices, before.indices)


def test_agreement_counts_steps_with_the_same_input_tokens():
    indices = np.array([[[[0, 1, 2, 3]], [[0, 1, 4, -1]], [[0, 5, -1, -1]]]], np.int16)  # 1 layer, 3 steps, 1 head
    case = selections.Case("ab", [7, 8], ["", "", ""], indices, {})  # a question of two tokens, then 7 is fed
    assert case.agreement(case) == 1
    changed = indices.copy()
    changed[0, 1, 0, :3] = [0, 2, 5]
    assert case.agreement(replace(case, indices=changed)) == (4 + 1 + 2) / 9
    assert case.agreement(replace(case, token_ids=[9, 8], indices=changed)) == (4 + 1) / 7, "another token was fed"
    stopped = replace(case, token_ids=[7], steps=["", ""], indices=indices[:, :2])
    assert case.agreement(stopped) == stopped.agreement(case) == 1, "up to the step where it stopped"
    assert case.agreement(replace(case, indices=indices.repeat(3, axis=2))) == 0, "other heads"
    dense = replace(case, indices=np.empty(0, np.int16))
    assert dense.agreement(replace(dense, token_ids=[7, 9])) == 0.5, "without selections, the share of equal tokens"
    assert dense.agreement(case) == 0


def test_a_file_is_read_back_and_another_version_is_refused(recorded, tmp_path, monkeypatch):
    path = tmp_path / "selections.npz"
    selections.save(path, recorded)
    again = selections.load(path)
    assert (again.prompt, again.environment) == (recorded.prompt, recorded.environment)
    assert list(again.cases) == list(recorded.cases)
    for name, case in recorded.cases.items():
        assert replace(again.cases[name], indices=case.indices) == case
        assert np.array_equal(again.cases[name].indices, case.indices)
    monkeypatch.setattr(selections, "VERSION", 2)
    with pytest.raises(selections.kvviz.IncompatibleFileError, match="version 1"):
        selections.load(path)
