"""Every method writes and selects what data/selections/selections.npz recorded, which `make selections` makes.

Bit for bit on the processor and with the packages that the file was made with. Others round differently: there, 97 % of
the recorded indices have to be the same for each case, and a warning says that no more was compared.
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

_spec = importlib.util.spec_from_file_location("make_selections", MAKE)  # a script of the checkout, in no package
selections = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = selections  # where its dataclasses look up their annotations
_spec.loader.exec_module(selections)


@pytest.fixture(scope="module")
def recorded():
    return selections.load()


@pytest.fixture(scope="module")
def bit_for_bit(recorded) -> bool:
    """Whether this machine rounds as the one that the file was made on."""
    here = selections.environment()
    other = [f"{name} {here[name]}, not {was}" for name, was in recorded.environment.items() if here[name] != was]
    if other:
        message = f"selections compared to {LEAST:.0%}, not bit for bit; recorded with another {', '.join(other)}"
        warnings.warn(message, stacklevel=1)
    return not other


def test_every_method_and_preset_is_recorded(recorded):
    assert list(recorded.cases) == selections.cases(), "make selections"


@pytest.mark.model
@pytest.mark.parametrize("name", selections.cases())
def test_texts_and_selections_are_those_recorded(lm, recorded, bit_for_bit, name):
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
    other = [step for step, both in enumerate(zip(now.steps, before.steps, strict=True)) if len(set(both)) > 1]
    assert not other, f"steps {other} select other tokens; of the indices kept {agreement:.2%} are the same"
    assert np.array_equal(now.indices, before.indices)


def test_agreement_is_over_the_steps_that_were_fed_the_same_tokens():
    indices = np.array([[[[0, 1, 2, 3]], [[0, 1, 4, -1]], [[0, 5, -1, -1]]]], np.int16)  # 1 layer, 3 steps, 1 head
    case = selections.Case("ab", [7, 8], ["", "", ""], indices, {})  # a question of two tokens, then 7 is fed
    assert case.agreement(case) == 1
    changed = indices.copy()
    changed[0, 1, 0, :3] = [0, 2, 5]
    assert case.agreement(replace(case, indices=changed)) == (4 + 1 + 2) / 9
    assert case.agreement(replace(case, token_ids=[9, 8], indices=changed)) == (4 + 1) / 7, "another token was fed"
    stopped = replace(case, token_ids=[7], steps=["", ""], indices=indices[:, :2])
    assert case.agreement(stopped) == stopped.agreement(case) == 1, "up to where it stopped"
    assert case.agreement(replace(case, indices=indices.repeat(3, axis=2))) == 0, "of other heads"
    dense = replace(case, indices=np.empty(0, np.int16))
    assert dense.agreement(replace(dense, token_ids=[7, 9])) == 0.5, "nothing was selected: of the tokens written"
    assert dense.agreement(case) == 0


def test_a_file_comes_back_and_another_version_is_refused(recorded, tmp_path, monkeypatch):
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
