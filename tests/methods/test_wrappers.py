"""Wrappers: how they are named, what their fields are, and what a wrapped method takes from either class."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

import kvviz
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.methods import Method, Selection, Wrapper, create, get, names
from kvviz.methods.base import REGISTRY, State
from kvviz.methods.checks.steps import build_state, decode_step, random_tensors
from kvviz.methods.fields import number


@pytest.fixture(scope="module")
def last_only():
    """A wrapper that leaves only the last tokens of a choice, and is known by its name while the tests run."""

    @dataclass
    class LastOnly(Wrapper):
        """Attends to the last `share` of what the other method chose."""

        name = "last_only"
        title = "Last only"
        paper = "none"
        wraps = "quest"
        presets: ClassVar = {"paper": {}, "half": {"share": 0.5}}
        expected_failures: ClassVar = {"full_budget_attends_everything": "it leaves tokens out"}
        builds_for_any_budget = True

        share: float = number(1.0, 0, 1)

        @classmethod
        def check_wrapped(cls, method: type[Method]) -> None:
            if method.kind != "retrieval":
                raise InvalidInputError(f"{cls.name} over {method.name}", f"kind {method.kind}", "a retrieval method")

        def build(self, layer: Any, queries: Any, keys: Any, values: Any) -> State:
            state: State = super().build(layer, queries, keys, values)
            state.extras[LastOnly.name] = torch.zeros(10)
            return state

        def select(self, state: State, queries: torch.Tensor) -> Selection:
            chosen = super().select(state, queries)
            last = slice(-max(int(self.share * chosen.indices.shape[-1]), 1), None)
            return Selection(chosen.indices[..., last], chosen.groups[..., last], chosen.scores[..., last])

    yield LastOnly
    del REGISTRY["last_only"]


def test_the_two_spellings_make_one_class(last_only):
    spelled = create("last_only", over="quest", budget=512, page_size=32, share=0.5)
    assert type(spelled) is get("last_only(quest)") is get("last_only")
    assert spelled == create("last_only(quest)", budget=512, page_size=32, share=0.5)
    assert spelled.name == "last_only(quest)"
    assert spelled.title == "Last only over Quest"
    assert isinstance(spelled, get("quest"))
    assert isinstance(spelled, last_only)


def test_an_instance_brings_its_fields_and_others_replace_them(last_only):
    over = create("quest", page_size=8, budget=300, recent=5)
    made = create("last_only", over=over, recent=7)
    assert (made.config["page_size"], made.budget, made.recent) == (8, 300, 7)


def test_the_other_methods_defaults_stay(last_only):
    quest, made = create("quest"), create("last_only(quest)")
    assert made.config == quest.config | {"share": 1.0}
    assert made.dense_layers == 2
    assert (made.kind, made.stages, made.group_name) == (quest.kind, quest.stages, quest.group_name)
    assert made.style.color == quest.style.color
    assert type(made).expected_failures.keys() == {"full_budget_attends_everything"}
    assert type(made).builds_for_any_budget
    assert not get("last_only(ctkvr)").builds_for_any_budget


def test_presets_are_those_of_both(last_only):
    assert set(get("last_only(clusterkv)").presets) == {"paper", "official", "half"}
    official = create("last_only(clusterkv)", preset="official")
    assert official.config == create("clusterkv", preset="official").config | {"share": 1.0}
    assert create("last_only(clusterkv)", preset="half").config["share"] == 0.5


def test_it_chooses_by_what_the_other_chose(last_only):
    tensors = random_tensors(6, 2, 257)
    quest, made = create("quest", budget=64), create("last_only(quest)", budget=64, share=0.5)
    plain, expected = decode_step(quest, build_state(quest, *tensors), 6, 2, seed=0)
    state, selection = decode_step(made, build_state(made, *tensors), 6, 2, seed=0)
    assert torch.equal(selection.indices, expected.indices[..., -(expected.indices.shape[-1] // 2) :])
    assert state.metadata_bytes() == plain.metadata_bytes() + 40
    assert state.choosing_bytes() == state.read_bytes() + 40


def test_a_copy_is_equal_in_this_and_in_another_process(last_only):
    made = create("last_only(quest)", budget=64, page_size=8)
    assert copy.deepcopy(made) == made == pickle.loads(pickle.dumps(made))
    assert replace(made, page_size=4) == create("last_only(quest)", budget=64, page_size=4)
    assert create(made.name, **made.config) == made


def test_a_combination_is_not_a_name_of_its_own(last_only):
    create("last_only(clusterkv)")
    assert "last_only" in names()
    assert not any("(" in name for name in names())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("last_only(snapkv)", "got kind eviction; wanted a retrieval method"),
        ("quest(clusterkv)", "quest wraps no other method"),
        ("last_only(last_only(quest))", "wanted each wrapper once"),
    ],
)
def test_what_does_not_fit_is_refused(last_only, name, said):
    with pytest.raises(InvalidInputError, match=said.replace("(", r"\(").replace(")", r"\)")):
        create(name)


@pytest.mark.parametrize("name", ["last_only(qest)", "last_nly(quest)", "last_only(quest", "last_only(quest))"])
def test_an_unknown_name_is_refused(last_only, name):
    with pytest.raises(UnknownNameError):
        create(name)


def test_compare_takes_it_by_its_name(last_only, lm, prose):
    table = kvviz.compare(lm, prose[:1500], ["quest", "last_only(quest)"], [64], max_new_tokens=4)
    attended = table.set_index("method")["attended_tokens"]
    assert attended["last_only(quest)"] == pytest.approx(attended["quest"])
