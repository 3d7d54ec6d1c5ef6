"""Edits: how tokens are named, how edits combine, and how they are stored."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from kvviz import Edit, drop, exact, only, pin, replace
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.trace.geometry import Geometry

GEOMETRY = Geometry(n_layers=4, n_heads=6, n_kv_heads=2, head_dim=8, max_positions=64)
TEXTS = ["The", " code", " is", " 74", "63", ".", " The", " end", " is", " near", "."]


def placed(edit):
    return edit.on(TEXTS, GEOMETRY).parts[0].tokens


@pytest.mark.parametrize(
    ("tokens", "positions"),
    [
        ("7463", (3, 4)),
        ("4", (3,)),  # a token belongs to a match if it has one of its characters
        ("code is", (1, 2)),
        (re.compile(r"\bis\b"), (2, 8)),
        (re.compile("the", re.IGNORECASE), (0, 6)),
        (5, (5,)),
        ([4, 0, 4], (0, 4)),
        (range(2, 4), (2, 3)),
        (np.array([1, 9]), (1, 9)),
        (slice(-2, None), (9, 10)),
        (slice(None, None, -5), (0, 5, 10)),
    ],
)
def test_tokens_are_named_by_text_patterns_positions_and_slices(tokens, positions):
    assert placed(pin(tokens)) == placed(drop(tokens)) == positions


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("8888", "pin: tokens: got '8888', which does not occur in the prompt"),
        (re.compile("z+"), r"the pattern 'z\+', which does not occur"),
        ("is", r"'is', which occurs 2 times, at positions 2 to 2 in 'The code is 7463.* end is near.'; 8 to 8"),
        (11, "position 11; wanted 0 to 10"),
        (slice(20, 30), r"slice\(20, 30, None\); wanted some of the prompt's 11 tokens"),
    ],
)
def test_tokens_that_the_prompt_has_not_or_has_twice_are_refused(tokens, message):
    with pytest.raises(InvalidInputError, match=message):
        placed(pin(tokens))


@pytest.mark.parametrize("tokens", ["", [], -1, [2, -1], True, 1.5, [1.5], ["a"], None])
def test_what_names_no_tokens_is_refused(tokens):
    with pytest.raises(InvalidInputError, match=r"(pin|drop): tokens: got .*wanted text, a compiled regular"):
        pin(tokens)
    with pytest.raises(InvalidInputError, match=r"(pin|drop): tokens: got .*wanted text, a compiled regular"):
        drop(tokens)


@pytest.mark.parametrize("numbers", [[], "01", 3, [-1], [1.0], [True]])
def test_layers_heads_and_steps_are_collections_of_numbers(numbers):
    for make in (
        exact,
        only,
        lambda **where: replace("kept", **where),
        lambda **where: pin(0, **where),
        lambda **where: drop(0, **where),
    ):
        for name in ("layers", "heads", "steps"):
            with pytest.raises(InvalidInputError, match=f"{name}: got .*wanted a collection of numbers from 0"):
                make(**{name: numbers})


def test_an_unknown_stage_is_refused():
    with pytest.raises(UnknownNameError, match=r"replace: stage.*kept"):
        replace("sorting")
    assert Edit.from_config(replace("kept", layers=[1]).config) == replace("kept", layers=[1])
    with pytest.raises(InvalidInputError, match="the part"):
        Edit.from_config([{"kind": "replace", "stage": "sorting"}])


def test_layers_and_heads_outside_the_model_are_refused():
    with pytest.raises(InvalidInputError, match=r"exact: layers: got 4; wanted 0 to 3: the model has 4 layers"):
        exact(layers=[1, 4]).on(TEXTS, GEOMETRY)
    with pytest.raises(InvalidInputError, match=r"only: heads: got 2; wanted 0 to 1: the model has 2 KV heads"):
        only(heads=[2]).on(TEXTS, GEOMETRY)


def test_unknown_choices_are_refused():
    with pytest.raises(InvalidInputError, match="pin: budget: got 'more'; wanted 'same' or 'extra'"):
        pin(0, budget="more")
    with pytest.raises(InvalidInputError, match="exact: by: got 'h2o'; wanted 'oracle' or 'full'"):
        exact(by="h2o")


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        (pin([3, 4]), drop([4], layers=[1]), "position 4 pinned and dropped"),
        (exact(layers=[1]), exact(heads=[0], by="full"), "both 'oracle' and 'full'"),
        (only(layers=[1]), only(layers=[1, 2]), "'only' twice"),
        (only(layers=[1]), exact(steps=[2]), "'exact' in the heads of 'only'"),
        (replace("ranking"), exact(layers=[2]), "'exact' in the heads of 'replace'"),
        (replace("ranking"), replace("grouping", heads=[0]), "two stages replaced"),
    ],
)
def test_edits_that_contradict_each_other_are_refused(one, two, message):
    for first, second in ((one, two), (two, one)):
        with pytest.raises(InvalidInputError, match=message):
            first | second


def test_text_that_is_pinned_and_dropped_is_refused_once_the_prompt_is_known():
    edit = pin("7463") | drop(re.compile(r"\d"))
    with pytest.raises(InvalidInputError, match="position 3 pinned and dropped"):
        edit.on(TEXTS, GEOMETRY)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (pin([4], layers=[0]), drop([4], layers=[1])),
        (pin([4], heads=[0]), drop([4], heads=[1])),
        (pin([4], steps=[0]), drop([4], steps=range(1, 5))),
        (pin([4], rows=[0]), drop([4], rows=[1])),
        (exact(layers=[1]), exact(layers=[2], by="full")),
        (only(layers=[1]), exact(layers=[2])),
        (replace("ranking"), pin([4])),
        (replace("ranking", layers=[0]), replace("trimming", layers=[1])),
    ],
)
def test_edits_of_different_places_combine(one, two):
    assert (one | two).parts == (*one.parts, *two.parts)


def test_an_edit_is_stored_as_plain_data():
    edit = pin("7463", layers=[1], steps=range(3)) | drop(re.compile("The")) | exact([0], [1], by="full", rows=[2])
    edit |= only([1])
    resolved = edit.on(TEXTS, GEOMETRY)
    assert resolved.resolved
    assert not edit.resolved
    assert Edit.from_config(json.loads(json.dumps(resolved.config))) == resolved
    with pytest.raises(InvalidInputError, match="config of an edit: got tokens given as text"):
        _ = edit.config


@pytest.mark.parametrize(
    "config",
    [[{}], [{"kind": "move"}], [{"kind": "pin"}], [{"kind": "only", "layers": [-1]}], [{"kind": "exact", "by": "x"}],
     [{"kind": "drop", "tokens": {"a": 1}}], [{"kind": "only", "colour": "red"}]],
)  # fmt: skip
def test_other_data_is_no_edit(config):
    with pytest.raises(InvalidInputError):
        Edit.from_config(config)
