"""Evaluation at equal bytes: rows, refusals, one file with both kinds of budgets, its statistics and report."""

from __future__ import annotations

import json

import pytest

import kvviz
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.evaluation import command, costs, differences, of_hold, report, summary
from tests.evaluation.evaluation_tasks import Letters, save_model

METHODS = ["full", "oracle", "snapkv", "magicpig"]


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A file with rows at equal tokens and at equal bytes, from two calls."""
    folder = tmp_path_factory.mktemp("bytes")
    model, out = save_model(folder / "model"), folder / "results.parquet"
    for hold, budgets in (("tokens", [0.5]), ("bytes", [0.75, "4 KiB"])):
        kvviz.evaluate(model, [Letters()], METHODS, budgets, [160], samples=2, out=out, hold=hold)
    return out


def test_rows_say_what_is_held(grid):
    table = kvviz.load_results(grid)
    assert set(zip(table["method"], table["hold"], strict=True)) == {
        ("full", ""), *((name, hold) for name in METHODS[1:] for hold in ("tokens", "bytes"))
    }  # fmt: skip
    held = table[table["hold"] == "bytes"]
    assert set(held["budget"]) == {0.75, 4096.0}
    assert set(held["method_config"].map(lambda text: json.loads(text)["budget"]["bytes"])) == {0.75, 4096}
    full = table[table["method"] == "full"].set_index(["sample", "turn"])["held_bytes"]
    oracle = held[(held["method"] == "oracle") & (held["budget"] == 0.75)].set_index(["sample", "turn"])
    prompt = oracle["prompt_tokens"]
    assert (oracle["budget_tokens"] == (0.75 * prompt).astype(int)).all()
    assert (oracle["held_bytes"] < 0.76 * full).all()
    assert (oracle["read_bytes"] > oracle["held_bytes"]).all()


def test_a_method_that_does_not_fit_is_refused(grid):
    table = of_hold(grid, "bytes")
    small = table[(table["method"] == "magicpig") & (table["budget"] == 4096)]
    assert small["refused"].str.contains("magicpig: budget: got 4 KiB in layer 1; wanted at least").all()
    assert small["score"].isna().all()


def test_statistics_take_one_kind_at_a_time(grid):
    whole = kvviz.load_results(grid)
    for function in (summary, differences, costs):
        with pytest.raises(InvalidInputError, match="budgets in tokens and in bytes; wanted one of them"):
            function(whole)
    means = summary(of_hold(whole, "bytes"))
    assert means.attrs["hold"] == "bytes"
    assert set(means["budget"].dropna()) == {0.75, 4096.0}
    assert (means.loc[means["n"] > 0, ["held_bytes", "read_bytes"]] > 0).all(axis=None)
    assert set(summary(of_hold(grid, "tokens"))["budget"].dropna()) == {0.5}
    assert costs(of_hold(whole, "bytes"))["held_bytes_ratio"].min() < 0.8
    with pytest.raises(UnknownNameError, match="of_hold"):
        of_hold(whole, "byte")


def test_the_report_and_the_command_show_both(grid):
    text = report(grid)
    tokens, bytes_part = text.split("# At equal bytes\n")
    assert "| 50 % |" in tokens
    assert "75 %" not in tokens
    assert "| 75 % |" in bytes_part
    assert "held (MB)" in bytes_part
    assert "wanted at least" in bytes_part
    printed = command.means(kvviz.load_results(grid))
    assert "shares of the full cache's bytes" in printed
    assert "75%" in printed.split("bytes:")[1]


def test_the_command_reads_bytes():
    assert command.budget("2MiB") == kvviz.bytes("2 MiB")
    assert command.budget("512b") == kvviz.bytes(512)
    assert command.budget("25%") == 0.25
    with pytest.raises(InvalidInputError, match=r"bytes \(2MiB\)"):
        command.budget("much")
