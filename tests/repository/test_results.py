"""The committed results are complete, with their provenance, and their page is current."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import kvviz
from kvviz.evaluation import report
from kvviz.evaluation.grid import cells, examples

BENCHMARKS = Path(__file__).parents[2] / "data" / "benchmarks"


@pytest.fixture(scope="module")
def table():
    return kvviz.load_results(BENCHMARKS / "results.parquet")


@pytest.mark.slow
def test_the_page_is_written_from_the_results(table):
    assert (BENCHMARKS / "README.md").read_text() == report(table)


def test_every_row_has_its_provenance(table):
    for column in ("model", "model_hash", "dtype", "commit", "torch", "transformers", "hardware", "method_config"):
        assert (table[column] != "").all(), column
    assert not table["commit"].str.contains(r"\+|unknown").any(), "the code must be in the repository"
    assert table["model_hash"].nunique() == 1
    assert not table.duplicated(["key", "turn"]).any()
    ran = table[table["refused"] == ""]
    assert ran[["score", "metadata_bytes", "kept_bytes"]].notna().all(axis=None)
    assert set(kvviz.methods.names()) <= set(table["method"])


def test_the_file_has_all_cells_of_the_command_on_two_cores(table):
    script = runpy.run_path(str(BENCHMARKS / "results.py"))
    expected = {
        example.key(cell)
        for grid in script["TWO_CORES"]
        for example in examples(grid.tasks, grid.lengths, grid.samples, script["SEED"])
        for cell in cells(grid.methods, grid.budgets)
    }
    assert expected <= set(table["key"])


@pytest.mark.slow
@pytest.mark.model
def test_a_cell_run_again_gives_the_same(table):
    again = kvviz.evaluate("smollm2-135m", ["needle"], ["full", "pqcache", "snapkv"], [256], [1024], samples=1, seed=0)
    both = again.merge(table, on=["key", "turn"], suffixes=("", "_before"))
    assert len(both) == len(again) == 3
    for column in ("text", "score", "answers", "prompt_tokens", "method_config", "model_hash"):
        assert both[column].equals(both[f"{column}_before"].rename(column)), column
