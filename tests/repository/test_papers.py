"""The papers' figures and tables beside ours: none is missing, and every measurement runs at a small size."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

import kvviz
from tests import tiny_models

PAPERS = Path(__file__).parents[2] / "data" / "papers"


def _script():
    """data/papers/make.py as a module; it imports its entries and measurements like a script."""
    sys.path.insert(0, str(PAPERS))
    try:
        spec = importlib.util.spec_from_file_location("papers_make", PAPERS / "make.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(PAPERS))
    return script


SCRIPT = _script()


@pytest.fixture(scope="module")
def tiny() -> kvviz.LanguageModel:
    """A tiny model whose tokens are the printable characters."""
    return kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")


@pytest.mark.parametrize("name", sorted(SCRIPT.MEASURES))
def test_every_measurement_runs_at_a_small_size(name, tiny):
    each = SCRIPT.MEASURES[name]
    rows = each.run(tiny, **each.small)
    assert rows
    for row in rows:
        for value in row.values():
            assert isinstance(value, str | int | float | bool | None), f"{value!r} is not what JSON stores"
            assert not isinstance(value, float) or math.isfinite(value)


@pytest.fixture(scope="module")
def findings():
    return {key: entry.finding() for key, entry in SCRIPT.ENTRIES.items()}


def test_every_figure_and_table_has_an_entry():
    wanted = SCRIPT.wanted()
    assert len(wanted) == len(set(wanted)) == 84
    assert set(SCRIPT.ENTRIES) == set(wanted)
    for entry in SCRIPT.ENTRIES.values():
        assert entry.shows, entry.slug
        assert entry.headline, entry.slug
        assert entry.call, entry.slug


def test_outcomes_are_computed_and_explained(findings):
    for key, finding in findings.items():
        entry = SCRIPT.ENTRIES[key]
        assert finding.ours, entry.slug
        if entry.outcome(finding) in ("reproduced", "not reproduced"):
            assert isinstance(finding.holds, bool), entry.slug
            assert finding.run, f"{entry.slug}: how was it measured?"
        else:
            assert finding.holds is None, entry.slug
        if entry.outcome(finding) == "not measured yet":
            assert "make papers ARGS" in finding.ours or "make bench ARGS" in finding.ours, finding.ours
            continue
        if entry.outcome(finding) == "not reproduced":
            assert finding.why, entry.slug
        if entry.schematic:
            assert finding.draw is not None, entry.slug


def test_no_entry_writes_its_outcome_down():
    for path in (PAPERS / "entries").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "holds":
                assert not isinstance(node.value, ast.Constant), f"{path.name}, line {node.value.lineno}"


def test_commands_that_need_more_are_tested_at_a_small_size():
    root = PAPERS.parents[1]
    for entry in SCRIPT.ENTRIES.values():
        if entry.tested:
            path, _, name = entry.tested.partition("::")
            name = name.split("[")[0].split("::")[-1]
            assert f"def {name}(" in (root / path).read_text(encoding="utf-8"), f"{entry.slug}: {entry.tested}"


def test_pages_and_pictures_are_those_of_the_stored_results(findings):
    for name, text in SCRIPT.paper_pages.written(findings).items():
        assert (PAPERS / name).read_text(encoding="utf-8") == text, f"{name}: run make papers"
    drawn = {path for key, finding in findings.items() for path in SCRIPT.pictures(SCRIPT.ENTRIES[key], finding)}
    assert drawn == {f"pictures/{path.name}" for path in (PAPERS / "pictures").glob("*.png")}


def test_a_missing_measurement_says_which_command_makes_it():
    with pytest.raises(kvviz.IncompatibleFileError, match=r"make papers ARGS=.--measure nothing."):
        SCRIPT.sources.measured("nothing")


def test_every_stored_measurement_is_one_of_the_code():
    for path in (PAPERS / "measured").glob("*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        assert path.stem in SCRIPT.MEASURES, f"{path.name}: no measurement makes it"
        assert "+" not in stored["about"]["commit"], f"{path.name}: measured with code that is not in the repository"
        assert stored["about"]["sizes"].keys() == SCRIPT.MEASURES[path.stem].sizes.keys(), path.name
