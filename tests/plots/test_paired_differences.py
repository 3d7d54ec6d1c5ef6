"""The forest plot of paired differences: marks, intervals and words are those of the table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError
from kvviz.evaluation import differences
from kvviz.plots.print_names import named_for_print
from kvviz.plots.theme import ink
from tests.plots.test_plot_theme import assert_escaped, texts_of


def claims(**columns):
    """Three pairs of two methods at two budgets; one pair has no row at the second budget."""
    rows = [
        ("one", "clusterkv", "quest", 128, 0.5, 0.2, 0.7), ("one", "clusterkv", "quest", 256, 0.1, -0.1, 0.3),
        ("one", "clusterkv", "h2o", 128, -0.4, -0.6, -0.1), ("one", "clusterkv", "h2o", 256, 0.0, 0.0, 0.0),
        ("two", "ctkvr", "quest", 128, 0.2, 0.0, 0.4),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["paper", "method", "reference", "budget", "difference", "low", "high"])
    return table.assign(**{"n": 12, "metric": "number found", **columns})


def drawn(figure, panel):
    """Of one panel: [(line from above, ends of the interval, mean, verdict)], and the lines that say "no result"."""
    traces = [trace for trace in figure.data if trace.xaxis == panel and trace.y[0] is not None]
    intervals = [trace for trace in traces if trace.mode == "lines"]
    marks = [trace for trace in traces if trace.mode == "markers"]
    words = [trace for trace in traces if trace.mode == "text" and trace.text[0] != "no result"]
    absent = [line for trace in traces if trace.mode == "text" and trace.text[0] == "no result" for line in trace.y]
    assert [mark.y for mark in marks] == [interval.y[:1] for interval in intervals] == [word.y for word in words]
    rows = [
        (mark.y[0], interval.x, mark.x[0], word.text[0])
        for interval, mark, word in zip(intervals, marks, words, strict=True)
    ]
    return rows, absent


def test_each_pair_is_a_row_and_each_budget_a_panel():
    figure = plots.paired_differences(claims())
    assert drawn(figure, "x") == (
        [(1, (0.2, 0.7), 0.5, "reproduces"), (2, (-0.6, -0.1), -0.4, "opposite"), (4, (0.0, 0.4), 0.2, "inconclusive")],
        [],
    )
    assert drawn(figure, "x2") == ([(1, (-0.1, 0.3), 0.1, "inconclusive"), (2, (0, 0), 0, "inconclusive")], [4])
    assert [note.text for note in figure.layout.annotations] == [
        "budget 128", "budget 256", "clusterkv · one", "ctkvr · two",
    ]  # fmt: skip
    axis = figure.layout.yaxis
    labels = dict(zip(axis.tickvals, axis.ticktext, strict=True))
    assert labels == {1: "&gt; quest", 2: "&gt; h2o", 4: "&gt; quest"}
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range
    assert figure.layout.xaxis.zeroline
    assert figure.layout.xaxis.title.text == "difference in number found"
    assert "mean of 12 pairs" in figure.layout.title.text


@pytest.mark.parametrize("dark", [False, True])
def test_a_verdict_is_seen_without_colour_and_without_its_word(dark):
    figure = plots.paired_differences(claims(), dark=dark)
    marks = {}
    colors = {plots.method_style(name, dark)["color"] for name in ("clusterkv", "ctkvr")}
    for trace in figure.data:
        if trace.mode == "markers" and trace.hovertemplate:
            verdict = trace.hovertemplate.partition("<extra>")[0].rpartition("<br>")[2]
            hollow = trace.marker.color == ink(dark).background
            marks.setdefault(verdict, set()).add((trace.marker.symbol, hollow))
            assert trace.marker.line.color in colors
    assert marks == {
        "reproduces": {("circle", False)},
        "opposite": {("diamond", False)},
        "inconclusive": {("circle", True)},
    }
    legend = [trace.name.partition(":")[0] for trace in figure.data if trace.name]
    assert legend == ["reproduces", "inconclusive", "opposite"]


def test_words_stand_beside_their_interval():
    figure = plots.paired_differences(claims())
    for panel in ("x", "x2"):
        rows, _ = drawn(figure, panel)
        words = [trace for trace in figure.data if trace.xaxis == panel and trace.mode == "text"]
        for (_, (low, high), _, _), word in zip(rows, words, strict=False):
            on_left = word.textposition == "middle left"
            assert word.x[0] < min(low, 0) if on_left else word.x[0] > max(high, 0)


def test_it_draws_what_differences_returns():
    rng = np.random.default_rng(0)
    shared = {
        "task": "needle", "placement": "after", "length": 512, "seed": 0, "turn": 0, "metric": "found", "refused": "",
        "higher_is_better": True, "budget_tokens": 64, "task_config": "{}", "method_config": "{}", "model_hash": "x",
    }  # fmt: skip
    results = pd.DataFrame([
        {"method": method, "budget": 64.0, "sample": sample, "score": rng.uniform() + (method == "quest"), **shared}
        for method in ("quest", "h2o") for sample in range(8)
    ])  # fmt: skip
    table = differences(results, "h2o")
    ((_, interval, mean, verdict),), _ = drawn(plots.paired_differences(table), "x")
    assert (*interval, mean) == tuple(table.loc[0, ["low", "high", "difference"]])
    assert verdict == "reproduces"
    assert "95% interval" in plots.paired_differences(table).layout.title.text


def test_names_of_methods_are_those_of_papers_in_print_and_are_escaped():
    figure = plots.paired_differences(claims())
    named_for_print(figure, "paper")
    assert figure.layout.yaxis.ticktext[:2] == ("&gt; Quest", "&gt; H2O")
    assert "ClusterKV · one" in [note.text for note in figure.layout.annotations]
    hostile = plots.paired_differences(claims(method="<b>$m$</b>", reference=["<i>r</i>"] * 4 + ["$s$"]).iloc[[0, 4]])
    assert_escaped([*texts_of(hostile), *hostile.layout.yaxis.ticktext])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"low": np.inf}, "finite"), ({"difference": "high"}, "wanted numbers"), ({"low": 0.9}, "low <= high"),
     ({"reference": "quest"}, "quest twice at budget 128")],
)  # fmt: skip
def test_a_table_that_cannot_be_drawn_is_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.paired_differences(claims(**change))
    with pytest.raises(InvalidInputError, match="also reference"):
        plots.paired_differences(claims().drop(columns="reference"))
    with pytest.raises(InvalidInputError, match="across"):
        plots.paired_differences(claims(), across=0)
