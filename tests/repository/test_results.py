"""The committed results are complete, with their provenance, and their page is current."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import kvviz

BENCHMARKS = Path(__file__).parents[2] / "data" / "benchmarks"


@pytest.fixture(scope="module")
def table():
    return kvviz.load_results(BENCHMARKS / "results.parquet")


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(BENCHMARKS / "results.py"))


@pytest.mark.slow
def test_the_page_is_written_from_the_results(table, script):
    assert (BENCHMARKS / "README.md").read_text() == script["page"](table)


def test_every_row_has_its_provenance(table):
    for column in ("model", "model_hash", "dtype", "commit", "torch", "transformers", "hardware", "method_config"):
        assert (table[column] != "").all(), column
    assert not table["commit"].str.contains(r"\+|unknown").any(), "the code must be in the repository"
    assert table["model_hash"].nunique() == 1
    assert not table.duplicated(["key", "turn"]).any()
    ran = table[table["refused"] == ""]
    assert ran[["score", "metadata_bytes", "kept_bytes"]].notna().all(axis=None)


def test_methods_without_results_are_named_on_the_page(table):
    note = (BENCHMARKS / "README.md").read_text().splitlines()[2]
    without = set(kvviz.methods.names()) - set(table["method"])
    assert re.findall(r"`(\w+)`", note.partition("Methods without any result:")[2]) == sorted(without)


def test_the_page_says_how_many_cells_are_missing(table, script):
    absent, total = script["missing"](script["TWO_CORES"], table)
    assert total > 3000
    assert (f"{absent:,} of the {total:,} cells" in (BENCHMARKS / "README.md").read_text()) == (absent > 0)
    assert script["missing"](script["TWO_CORES"], table[:0]) == (total, total)


@pytest.mark.slow
@pytest.mark.model
def test_a_cell_run_again_gives_the_same(table):
    again = kvviz.evaluate("smollm2-135m", ["needle"], ["full", "pqcache", "snapkv"], [256], [1024], samples=1, seed=0)
    both = again.merge(table, on=["key", "turn"], suffixes=("", "_before"))
    if both.empty:
        pytest.skip("the file's cells are of methods that have changed since; the page says so")
    assert len(both) == len(again) == 3
    for column in ("text", "score", "answers", "prompt_tokens", "method_config", "model_hash"):
        assert both[column].equals(both[f"{column}_before"].rename(column)), column
