"""The Pareto picture against brute force, and what the axes say of bytes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError
from kvviz.metrics import bootstrap_interval


def table_of(seed=0, count=30, **attrs):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "method": rng.choice(["quest", "snapkv", "h2o"], count), "budget": np.arange(count, dtype=float),
        "held_bytes": rng.integers(1, 40, count) * 1024, "read_bytes": rng.integers(1, 40, count) * 1024,
        "score": rng.integers(0, 12, count) / 10,
    })  # fmt: skip
    table.attrs = attrs
    return table


def frontiers(figure):
    return [set(zip(line.x, line.y, strict=True)) for line in figure.data if line.name == "frontier"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lower", [False, True])
def test_the_frontier_is_what_no_other_point_beats(seed, lower):
    table = table_of(seed)
    found = frontiers(plots.pareto(table, lower_is_better=lower))
    for name, front in zip(("held_bytes", "read_bytes"), found, strict=True):
        points = list(zip(table[name], table["score"] * (-1 if lower else 1), strict=True))
        best = {
            (x, -y if lower else y)
            for x, y in points
            if not any(a <= x and b >= y and (a < x or b > y) for a, b in points)
        }
        assert front == best


def test_points_are_means_over_samples_with_intervals():
    scores = [0.0, 1.0, 1.0, 0.0, 1.0]
    table = pd.DataFrame({
        "method": "quest", "budget": 0.25, "sample": [0, 1, 2, 3, 4], "seed": 0, "score": scores, "held_bytes": 2048,
        "read_bytes": 4096, "hold": "bytes",
    })  # fmt: skip
    figure = plots.pareto(table)
    (line, _) = [trace for trace in figure.data if trace.name == "quest"]
    low, high = bootstrap_interval(np.array(scores))
    assert line.y.tolist() == [0.6]
    assert (line.y + line.error_y.array).tolist() == pytest.approx([high])
    assert (line.y - line.error_y.arrayminus).tolist() == pytest.approx([low])
    title = figure.layout.title.text.replace("<br>", " ")
    assert "equal bytes" in title
    assert "mean of 5 samples" in title
    assert "2 KiB" in line.customdata[0]
    assert (figure.layout.xaxis.title.text, figure.layout.xaxis2.title.text) == ("bytes held", "bytes read per step")


def test_a_summary_keeps_its_intervals_and_its_direction():
    table = pd.DataFrame({
        "method": ["full", "quest", "quest"], "budget": [np.nan, 0.25, 0.5], "mean": [2.0, 2.4, 2.1],
        "low": [1.9, 2.3, 2.0], "high": [2.2, 2.5, 2.3], "n": 4, "held_bytes": [4096.0, 1024, 2048],
        "higher_is_better": False, "metric": "nats per token",
    })  # fmt: skip
    figure = plots.pareto(table, x="held_bytes", y="mean")
    (front,) = frontiers(figure)
    assert front == {(1024.0, 2.4), (2048.0, 2.1), (4096.0, 2.0)}
    full = next(trace for trace in figure.data if trace.name == "full")
    assert full.error_y.array.tolist() == pytest.approx([0.2])
    assert figure.layout.yaxis.title.text == "nats per token: mean, lower is better"


def test_refused_rows_are_left_out_and_wrong_tables_named():
    table = table_of()
    table.loc[0, ["held_bytes", "read_bytes", "score"]] = np.nan
    points = sum(len(line.x) for line in plots.pareto(table, x="held_bytes").data if line.name != "frontier")
    assert points == len(table) - 1
    with pytest.raises(InvalidInputError, match="pareto: x"):
        plots.pareto(table, x="bytes")
    with pytest.raises(InvalidInputError, match="pareto: task"):
        plots.pareto(table.assign(task=["a", "b"] * 15))
    with pytest.raises(InvalidInputError, match="also held_bytes"):
        plots.pareto(table.drop(columns="held_bytes"))
    with pytest.raises(InvalidInputError, match="pareto: hold"):
        plots.pareto(table.assign(hold=["tokens", "bytes"] * 15))


@pytest.mark.parametrize(
    ("budgets", "hold", "title", "tick"),
    [
        ([0.125, 0.25], "bytes", "budget (share of the cache's bytes)", "0.125"),
        ([2048, 4096], "bytes", "budget (bytes per layer)", "2 KiB"),
        ([128, 256], "tokens", "budget (tokens per KV head)", "128"),
        ([0.125, 0.25], "tokens", "budget (share of the prompt)", "0.125"),
    ],
)
def test_axes_of_budgets_say_what_is_held(budgets, hold, title, tick):
    rows = pd.DataFrame({"method": "quest", "budget": budgets, "score": [0.4, 0.6], "recall": [0.4, 0.6]})
    rows.attrs["hold"] = hold
    for figure in (plots.score_by_budget(rows), plots.recall_by_budget(rows)):
        assert figure.layout.xaxis.title.text == title
        assert figure.layout.xaxis.ticktext[0] == tick
        assert ("equal bytes" in figure.layout.title.text) == (hold == "bytes")
    both = pd.concat([rows.assign(hold="tokens"), rows.assign(hold="bytes")])
    with pytest.raises(InvalidInputError, match="of_hold"):
        plots.score_by_budget(both)
