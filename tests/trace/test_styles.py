"""Styles of methods: valid styles, defaults that follow from the name, and styles in recordings."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.trace import Recording
from kvviz.trace.styles import Style, load_style, style_of
from tests import synthetic
from tests.trace.test_damaged_files import edit_metadata

RECORDED = Path(__file__).parents[2] / "data" / "recordings"


def test_missing_parts_of_a_style_follow_from_kind_and_name():
    complete = Style("#AA3377", "dot", "star-open")
    assert complete.completed("mine", "retrieval") == complete
    assert Style().completed("mine") == Style("muted", "dash", "hourglass")
    assert Style(dash="solid").completed("mine", "eviction") == Style("#A3877A", "solid", "hourglass")
    looks = {Style().completed(f"method {number}", "retrieval") for number in range(200)}
    assert len(looks) > 30  # of 42
    assert style_of("a method of nobody", "merging").color == "#93839F"


@pytest.mark.parametrize(
    "fields",
    [{"color": "red"}, {"color": "#12345"}, {"color": "#123456;x:url(y)"}, {"color": ""}, {"dash": "dotted"},
     {"symbol": "<b>"}, {"symbol": ""}],
    ids=str,
)  # fmt: skip
def test_invalid_styles_are_refused(fields):
    (name, value) = next(iter(fields.items()))
    with pytest.raises(InvalidInputError, match=re.escape(f"Style: {name}: got {value!r}")):
        Style(**fields)
    with pytest.raises(IncompatibleFileError, match=name):
        load_style(fields, "read x")


@pytest.mark.parametrize("values", [None, [], "#123456", {"colour": "#123456"}, {"color": 3}, {"color": None}])
def test_files_without_a_valid_style_are_refused_by_name(values):
    with pytest.raises(IncompatibleFileError, match=r'read x.*wanted an object with "color"'):
        load_style(values, "read x")


def test_a_recording_keeps_its_style_and_group_name(tmp_path):
    style = Style("#AA3377", "dot", "star-open")
    original = synthetic.recording().replace(method="mine", group_name="stripe", style=style)
    again = Recording.load(original.save(tmp_path / "recording"))
    assert (again.group_name, again.style) == ("stripe", style)
    plain = Recording.load(synthetic.recording().save(tmp_path / "plain"))
    assert (plain.group_name, plain.style) == ("cluster", None)
    assert again.cut(1, 3).style == style


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.safetensors")), ids=lambda path: path.stem)
def test_older_files_get_the_group_name_and_style_of_their_time(path, tmp_path):
    path = Path(shutil.copy(path, tmp_path))
    newer = {"group_name", "style"}  # which older files do not have
    edit_metadata(path, lambda metadata: {name: value for name, value in metadata.items() if name not in newer})
    words = {"quest": "page", "pqcache": "block", "ctkvr": "query centroid", "centroidkv": "centroid"}
    run = Recording.load(path)
    assert run.group_name == words.get(run.method, "cluster")
    assert run.style is None
    assert style_of(run.method).color.startswith("#")


@pytest.mark.parametrize(
    ("name", "value"),
    [("group_name", None), ("group_name", 3), ("style", None), ("style", "red"), ("style", {"color": "red"}),
     ("style", {"colour": "#123456"}), ("styles", asdict(Style()))],
)  # fmt: skip
def test_damaged_group_names_and_styles_are_refused_by_name(tmp_path, name, value):
    path = synthetic.recording().save(tmp_path / "recording")
    edit_metadata(path, lambda metadata: metadata | {name: value})
    with pytest.raises(IncompatibleFileError, match=name):
        Recording.load(path)
