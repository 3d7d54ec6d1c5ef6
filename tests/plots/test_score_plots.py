"""Scores, perplexity, needles and ablations: figures show their tables, and intervals equal resampling."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from kvviz import metrics, plots
from kvviz.errors import InvalidInputError


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_a_bootstrap_interval_holds_the_middle_of_the_resampled_means(level):
    values = np.random.default_rng(3).gamma(2.0, size=40)
    low, high = metrics.bootstrap_interval(values, level=level, resamples=20_000)
    means = np.random.default_rng(1).choice(values, (20_000, len(values))).mean(1)
    expected = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    noise = values.std() / math.sqrt(len(values))  # of the mean
    assert (low, high) == pytest.approx(tuple(expected), abs=0.05 * noise)
    assert low < values.mean() < high
    assert metrics.bootstrap_interval(values, level=level) == metrics.bootstrap_interval(values, level=level)


def test_a_bootstrap_interval_of_two_values_equals_counting():
    # Means of two draws from 0 and 1: 0 and 1 with a quarter each, 0.5 with a half.
    assert metrics.bootstrap_interval(np.array([0, 1]), level=0.4) == (0.5, 0.5)
    assert metrics.bootstrap_interval(np.array([0, 1]), level=0.6) == (0.0, 1.0)
    assert metrics.bootstrap_interval(np.array([True])) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("values", "arguments"),
    [([], {}), ([[1.0]], {}), ([np.nan], {}), ([1.0], {"level": 1.0}), ([1.0], {"resamples": 0})],
)
def test_values_without_a_bootstrap_interval_are_refused(values, arguments):
    with pytest.raises(InvalidInputError, match="bootstrap_interval"):
        metrics.bootstrap_interval(np.array(values), **arguments)


@pytest.fixture
def scores():
    """Two tasks, five samples, two seeds; "quest" is in one task only."""
    rng = np.random.default_rng(0)
    rows = [
        {"task": task, "method": method, "budget": budget, "sample": sample, "score": rng.uniform()}
        for task in ("QA", "<b>code</b>")
        for method in ("full", "clusterkv", "quest")
        if (task, method) != ("QA", "quest")
        for budget in ((2000 + len(task),) if method == "full" else (128, 512, 256))
        for sample in range(5)
        for _ in range(2)
    ]
    return pd.DataFrame(rows)


def test_score_by_budget_draws_the_mean_over_samples_and_their_bootstrap_interval(scores):
    figure = plots.score_by_budget(scores, confidence=0.9, seed=7)
    panels = {"QA": "x", "<b>code</b>": "x2"}
    drawn = {(trace.xaxis, trace.name): trace for trace in figure.data}
    assert set(drawn) == {("x", "full"), ("x", "clusterkv"), ("x2", "full"), ("x2", "clusterkv"), ("x2", "quest")}
    for (task, method), rows in scores.groupby(["task", "method"]):
        trace = drawn[panels[task], method]
        assert trace.line.color == plots.method_style(method)["color"]
        if method == "full":
            np.testing.assert_allclose(trace.y, rows["score"].mean())
            continue
        np.testing.assert_array_equal(trace.customdata[:, 0], [128, 256, 512])
        np.testing.assert_allclose(trace.x, [128, 256, 512], rtol=0.1)
        for place, budget in enumerate((128, 256, 512)):
            cell = rows[rows["budget"] == budget]
            samples = np.array([cell[cell["sample"] == sample]["score"].mean() for sample in range(5)])
            low, high = metrics.bootstrap_interval(samples, level=0.9, seed=7)
            assert trace.y[place] == pytest.approx(samples.mean())
            assert trace.y[place] - trace.error_y.arrayminus[place] == pytest.approx(low)
            assert trace.y[place] + trace.error_y.array[place] == pytest.approx(high)
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert sorted(shown) == ["clusterkv", "full", "quest"]
    assert [note.text for note in figure.layout.annotations] == ["QA", "&lt;b&gt;code&lt;/b&gt;"]
    assert "mean of 5 samples, bars: 90% bootstrap interval" in figure.layout.title.text.replace("<br>", " ")
    assert list(figure.layout.xaxis.tickvals) == [128, 256, 512]


def test_score_by_budget_of_right_and_wrong_is_a_share_without_bars_for_one_sample():
    table = pd.DataFrame({"method": "quest", "budget": [0.1, 0.2], "correct": [True, False]})
    figure = plots.score_by_budget(table, score="correct", dark=True)
    (trace,) = figure.data
    assert trace.y.tolist() == [1.0, 0.0]
    assert trace.error_y.array is None
    assert figure.layout.yaxis.title.text == "correct (share of samples)"
    assert figure.layout.xaxis.title.text == "budget (share of the prompt)"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"budget": 0}, "budgets above 0"), ({"score": "good"}, "wanted numbers"), ({"score": np.inf}, "finite"),
     ({"score": np.nan}, "no row"), ({"method": "full"}, "at least one not in levels")],
)  # fmt: skip
def test_scores_that_cannot_be_drawn_are_refused(scores, change, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.score_by_budget(scores.assign(**change))
    with pytest.raises(InvalidInputError, match="also budget"):
        plots.score_by_budget(scores.drop(columns="budget"))
    with pytest.raises(InvalidInputError, match="across"):
        plots.score_by_budget(scores, across=0)


def test_perplexity_by_length_is_a_geometric_mean_with_its_distance_from_full():
    table = pd.DataFrame({
        "method": ["full"] * 4 + ["quest"] * 4, "length": [512, 512, 1024, 1024] * 2,
        "perplexity": [4.0, 9.0, 5.0, 5.0, 8.0, 8.0, 5.0, 7.2],
    })  # fmt: skip
    figure = plots.perplexity_by_length(table)
    lines = {trace.name: trace for trace in figure.data if trace.fill is None}
    assert list(lines) == ["full", "quest (up to +2.00 against full)"]
    np.testing.assert_allclose(lines["full"].y, [6, 5])
    np.testing.assert_allclose(lines["quest (up to +2.00 against full)"].y, [8, 6])
    first = next(trace for trace in figure.data if trace.fill)
    np.testing.assert_allclose(first.y, [9, 5, 5, 4])
    assert figure.layout.yaxis.type == "linear"
    assert plots.perplexity_by_length(table.assign(perplexity=[1, 1, 1, 1, 20, 20, 1, 1])).layout.yaxis.type == "log"


def test_perplexity_by_position_is_cumulative():
    rng = np.random.default_rng(1)
    positions, values = np.arange(100, 1100), rng.uniform(2, 50, 1000)
    table = pd.DataFrame({"method": "quest", "position": positions, "perplexity": values}).sample(frac=1)
    (line,) = plots.perplexity_by_length(table).data
    assert line.x[0] == 131  # the 32nd token
    assert line.x[-1] == 1099
    assert len(line.x) <= 200
    for x, y in zip(line.x, line.y, strict=True):
        assert y == pytest.approx(math.prod(values[: int(x) - 99] ** (1 / (x - 99))))


def test_perplexity_without_an_axis_or_above_zero_is_refused():
    table = pd.DataFrame({"method": "quest", "length": [1, 2], "position": [1, 2], "perplexity": [3.0, 0.0]})
    with pytest.raises(InvalidInputError, match="both length and position"):
        plots.perplexity_by_length(table)
    with pytest.raises(InvalidInputError, match=r"perplexity: got 0\.0; wanted numbers above 0"):
        plots.perplexity_by_length(table.drop(columns="position"))
    with pytest.raises(InvalidInputError, match="also length"):
        plots.perplexity_by_length(table[["method", "perplexity"]])


@pytest.fixture
def needles():
    rng = np.random.default_rng(2)
    rows = [
        {"method": method, "budget": budget, "length": length, "depth": depth, "correct": bool(rng.integers(2))}
        for method, budgets in (("full", (1000, 2000)), ("quest", (128, 256)))
        for budget in budgets
        for length in (1000, 2000)
        for depth in (0.0, 0.5, 1.0)
        for _ in range(3)
        if (length, depth) != (2000, 1.0)
    ]
    return pd.DataFrame(rows)


def test_needle_grid_counts_the_needles_of_every_cell(needles):
    figure = plots.needle_grid(needles, found="correct")
    quest = needles[needles["method"] == "quest"]
    panels = [needles[needles["method"] == "full"], *(quest[quest["budget"] == budget] for budget in (128, 256))]
    names = ["full", "quest · budget 128", "quest · budget 256"]
    for trace, rows, name, note in zip(figure.data, panels, names, figure.layout.annotations, strict=True):
        assert note.text == f"{name} · {rows['correct'].sum()} of {len(rows)}"
        cells = {
            (int(base + 0.5), int(x)): (share, text)
            for base, x, share, text in zip(trace.base, trace.x, trace.marker.color, trace.text, strict=True)
        }
        for row, depth in enumerate((0.0, 0.5, 1.0)):
            for column, length in enumerate((1000, 2000)):
                cell = [item.correct for item in rows.itertuples() if (item.length, item.depth) == (length, depth)]
                expected = (pytest.approx(sum(cell) / len(cell)), f"{sum(cell)}/{len(cell)}") if cell else None
                assert cells.get((row, column)) == expected
    assert (figure.layout.xaxis.ticktext, figure.layout.yaxis.ticktext) == (("1,000", "2,000"), ("0%", "50%", "100%"))
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)


def test_needle_grid_is_compact():
    rows = [
        {"method": method, "length": length, "depth": depth / 5, "found": True}
        for method in ("full", "clusterkv", "pqcache", "ctkvr", "centroidkv", "quest")
        for length in (500, 1000) for depth in range(6)
    ]  # fmt: skip
    figure = plots.needle_grid(pd.DataFrame(rows))
    rows_of_panels = {axis.domain for axis in figure.select_yaxes()}
    assert len(rows_of_panels) == 2
    assert figure.layout.height < 430  # pixels, for two rows of six depths; cells of 19 pixels hold a line of text
    labelled = [axis.showticklabels for axis in figure.select_xaxes()]
    assert labelled == [False] * 3 + [True] * 3
    assert len({axis.domain for axis in plots.needle_grid(pd.DataFrame(rows), across=2).select_yaxes()}) == 3


def test_needle_grid_groups_depths_and_puts_one_budget_into_the_title():
    depths = np.linspace(0, 1, 41)
    table = pd.DataFrame({"method": "quest", "budget": 64, "length": 500, "depth": depths, "found": depths < 0.35})
    figure = plots.needle_grid(table)
    (trace,) = figure.data
    expected = [
        np.mean([depth < 0.35 for depth in depths if part == min(int(depth * 10 + 1e-9), 9)]) for part in range(10)
    ]
    np.testing.assert_allclose(trace.marker.color, expected)
    assert figure.layout.yaxis.ticktext[0] == "0–10%"
    assert "budget 64" in figure.layout.title.text
    assert figure.layout.annotations[0].text == "quest · 14 of 41"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"depth": 1.2}, "depth: got 1.2"), ({"correct": 2}, "correct"), ({"length": range(33)}, "33 lengths")],
)
def test_needles_that_do_not_fit_a_grid_are_refused(needles, change, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.needle_grid(needles.head(33).assign(**change), found="correct")


def test_ablation_draws_the_mean_and_range_of_every_value():
    rows = [
        {"method": method, "budget": budget, "n_probes": probes, "seed": seed, "recall": 1 / (probes + seed + budget),
         "throughput": 100 / probes}
        for method in ("ctkvr", "quest") for budget in (128, 256) for probes in (20, 5, 10, 40) for seed in range(3)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    figure = plots.ablation(table, field="n_probes", metric=["recall", "throughput"], series=["method", "budget"])
    top = [trace for trace in figure.data if trace.yaxis == "y"]
    assert [trace.name for trace in top] == [f"{m} · budget {b}" for m in ("ctkvr", "quest") for b in (128, 256)]
    for trace in top:
        method, budget = trace.name.split(" · budget ")
        assert trace.line.color == plots.method_style(method)["color"]
        assert trace.x.tolist() == [5, 10, 20, 40]
        values = np.array([[1 / (probes + seed + int(budget)) for seed in range(3)] for probes in (5, 10, 20, 40)])
        np.testing.assert_allclose(trace.y, values.mean(1))
        np.testing.assert_allclose(trace.y + trace.error_y.array, values.max(1))
        np.testing.assert_allclose(trace.y - trace.error_y.arrayminus, values.min(1))
    looks = [(trace.line.color, trace.line.dash, trace.marker.symbol) for trace in top]
    assert len(set(looks)) == 4
    assert len(figure.data) == 8
    assert sum(trace.showlegend for trace in figure.data) == 4
    assert figure.layout.xaxis.type == figure.layout.xaxis2.type == "log"
    assert (figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text) == ("recall", "throughput")


@pytest.mark.parametrize(
    ("values", "axis"),
    [([10, 20, 40, 80], "log"), ([1, 2, 3, 4], "linear"), ([0.0, 0.1, 0.2], "linear"), ([0, 10, 100], "linear"),
     ([64, 256], "linear"), (["cosine", "ip", "l2"], "category"), ([True, False, True], "category")],
)  # fmt: skip
def test_ablation_chooses_the_axis_by_the_values(values, axis):
    figure = plots.ablation(pd.DataFrame({"metric": values, "score": 1.0}), field="metric", metric="score", series=())
    assert figure.layout.xaxis.type == axis
    assert ("lines" in figure.data[0].mode) == (axis != "category")


def test_ablation_keeps_the_order_of_text_and_escapes_it():
    table = pd.DataFrame({"method": "ctkvr", "choice": ["random", "<i>init</i>", "random"], "recall": [0.2, 0.5, 0.4]})
    figure = plots.ablation(table, field="choice")
    assert list(figure.data[0].x) == ["random", "&lt;i&gt;init&lt;/i&gt;"]
    np.testing.assert_allclose(figure.data[0].y, [0.3, 0.5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"field": "nothing"}, "also nothing"), ({"field": "method"}, "neither a metric nor in series"),
     ({"field": "choice", "metric": []}, "no metric"), ({"field": "choice", "metric": "method"}, "wanted")],
)  # fmt: skip
def test_an_ablation_of_missing_columns_is_refused(arguments, message):
    table = pd.DataFrame({"method": ["ctkvr"], "choice": ["init"], "recall": [0.5]})
    with pytest.raises(InvalidInputError, match=message):
        plots.ablation(table, **arguments)
