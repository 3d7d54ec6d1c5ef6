"""Maps of selections and curves of recall show their data, and refuse inconsistent data."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.plots.cells import AGREED, KEPT, MISSED, WASTED
from kvviz.plots.theme import LIGHT
from tests import synthetic
from tests.plots import plot_data


@pytest.fixture(scope="module")
def recording():
    return plot_data.recording()


@pytest.fixture
def table():
    return plot_data.table()


def brute_force(recording, layer, head, step):
    """Mark of each position that the method or the oracle selects at a step."""
    chosen = {place for place in recording.indices(step, layer)[head].tolist() if place >= 0}
    weights = recording.attention(step, layer)[head]
    best = set(sorted(range(len(weights)), key=lambda place: (-weights[place], place))[: len(chosen)])
    marks = dict.fromkeys(chosen & best, AGREED) | dict.fromkeys(best - chosen, MISSED)
    always = {place for place in chosen if place < 4 or place >= 60}  # sinks and generated tokens
    return marks | dict.fromkeys(chosen - best, WASTED) | dict.fromkeys((chosen - best) & always, KEPT), weights


def pieces(trace):
    """The NaN-separated parts of a path, as lists of (x, y)."""
    for gap, points in itertools.groupby(
        zip(trace.x, trace.y, strict=True), key=lambda point: bool(np.isnan(point[0]))
    ):
        if not gap:
            yield list(points)


def drawn(figure, panel=0, width=1):
    """Mark of each (step, column start), as drawn by the paths of a panel."""
    axis = "x" if panel == 0 else f"x{panel + 1}"
    filled, strokes, outlined, dots = [
        trace for trace in figure.data if trace.type == "scatter" and trace.xaxis == axis and len(trace.x) != 1
    ]
    assert filled.fill == "toself"
    assert strokes.fill is outlined.fill is None
    assert dots.mode == "markers"
    columns = [int((x + 0.5) // width) * width for x in dots.x]
    marks = dict.fromkeys(zip(dots.y.astype(int).tolist(), columns, strict=True), KEPT)
    for trace, mark in ((filled, AGREED), (strokes, WASTED), (outlined, MISSED)):
        for points in pieces(trace):
            xs, ys = zip(*points, strict=True)
            wide = max(xs) - min(xs) >= width  # several strokes may share a cell
            for place in np.arange(min(xs) + width / 2, max(xs), width) if wide else [(min(xs) + max(xs)) / 2]:
                key = round((min(ys) + max(ys)) / 2), int((place + 0.5) // width) * width
                assert marks.setdefault(key, mark) == mark, "a cell has one mark"
    return marks


@pytest.mark.parametrize("head", [0, 1])
def test_selection_map_draws_the_four_marks_of_every_token(recording, head):
    figure = plots.selection_map(recording, 2, head, columns=512)
    expected = {
        (step, place): mark
        for step in range(recording.steps)
        for place, mark in brute_force(recording, 2, head, step)[0].items()
    }
    assert drawn(figure) == expected
    assert set(expected.values()) == {AGREED, MISSED, WASTED, KEPT}


def test_the_legend_explains_each_mark_by_its_shape(recording):
    for dark in (False, True):
        figure = plots.selection_map(recording, 2, dark=dark)
        entries = {
            trace.name.partition(":")[0]: trace.marker for trace in figure.data if trace.name and trace.mode != "lines"
        }
        shapes = {name: (marker.symbol, marker.size) for name, marker in entries.items()}
        assert shapes == {
            "agreed with the oracle": ("square", 10), "missed": ("square-open", 10), "wasted": ("line-ne-open", 10),
            "sink, recent or generated": ("circle", 5),
        }  # fmt: skip
        assert len(set(shapes.values())) == 4  # they differ in greyscale


def test_a_pooled_map_shows_the_most_attended_marked_token_and_says_so(recording):
    figure = plots.selection_map(recording, 2, columns=20)
    width = 4  # 68 positions in at most 20 columns
    hover = next(trace for trace in figure.data if trace.type == "heatmap")
    expected = {}
    for step in range(recording.steps):
        marks, weights = brute_force(recording, 2, 0, step)
        for start in range(0, 68, width):
            inside = [place for place in range(start, start + width) if place in marks]
            counts = [sum(marks[place] == kind for place in inside) for kind in (AGREED, MISSED, WASTED, KEPT)]
            position, *shown = hover.customdata[step, start // width].tolist()
            assert shown == counts
            if inside:
                heaviest = max(inside, key=lambda place: weights[place])
                assert position == heaviest
                assert hover.z[step, start // width] == pytest.approx(weights[heaviest])
                expected[step, start] = marks[heaviest]
            else:
                assert np.isnan(hover.z[step, start // width])
    assert drawn(figure, width=width) == expected
    assert figure.layout.xaxis.title.text == "position (max-pooled by 4)"


def test_windows_of_steps_and_positions_cut_the_same_marks(recording):
    uncut = drawn(plots.selection_map(recording, 3, columns=512))
    part = drawn(plots.selection_map(recording, 3, steps=(2, 6), positions=(10, 64), columns=512))
    assert part == {(step, place): mark for (step, place), mark in uncut.items() if 2 <= step < 6 and 10 <= place < 64}


def test_panels_share_the_axis_and_show_their_numbers(recording):
    other = synthetic.recording(prompt_length=60, steps=8, budget=24, seed=1).replace(method="quest")
    figure = plots.selection_map([recording, other], 2, 1, columns=16)
    for panel, run in enumerate((recording, other)):
        recall = np.mean([run.recall(step, 2)[1] for step in range(8)])
        mass = np.mean([run.attention_mass(step, 2)[1] for step in range(8)])
        assert figure.layout.annotations[panel].text == (
            f"{run.method} · budget 24 · recall {recall:.2f} · mass {mass:.2f}"
        )
        filled = [trace for trace in figure.data if trace.type == "scatter" and trace.fill][panel]
        assert filled.fillcolor == plots.method_style(run.method)["color"]
    assert figure.layout.xaxis.matches == "x2"
    title = figure.layout.title.text.replace("<br>", " ")
    for part in ("synthetic", "60 tokens", "layer 2", "KV head 1", "steps 0–7"):
        assert part in title


def test_a_recording_by_query_head_shows_the_first_query_head_of_the_group(recording):
    events = recording.events[2]
    doubled = {
        name: np.repeat(getattr(events, name), 2, axis=1) for name in ("indices", "groups", "scores", "attention")
    }
    by_query = recording.replace(events={2: dataclasses.replace(events, **doubled)})
    figure = plots.selection_map([recording, by_query], 2, 1, columns=512)
    assert drawn(figure, 0) == drawn(figure, 1)
    assert "query head 2" in figure.layout.annotations[1].text


@pytest.mark.parametrize("color", ["attention", "group"])
def test_the_other_colours_fill_the_attended_and_outline_the_missed(recording, color):
    figure = plots.selection_map(recording, 2, color=color, columns=512)
    *filled, outlined = [trace for trace in figure.data if trace.type == "scatter" and len(trace.x) != 1]
    shades = {}
    for trace in filled:
        for points in pieces(trace):
            xs, ys = zip(*points, strict=True)
            for place in np.arange(min(xs) + 0.5, max(xs)):
                shades[round(np.mean([min(ys), max(ys)])), round(place)] = trace.fillcolor
    attended = {
        (step, place): group
        for step in range(8)
        for place, group in zip(
            recording.indices(step, 2)[0].tolist(), recording.groups(step, 2)[0].tolist(), strict=True
        )
        if place >= 0
    }
    assert set(shades) == set(attended)
    assert sum(1 for _ in pieces(outlined)) > 0
    if color == "group":
        neutral = {shades[cell] for cell, group in attended.items() if group < 0}
        assert neutral == {LIGHT.muted}
        by_group = {group: {shades[cell] for cell, member in attended.items() if member == group} for group in range(8)}
        for first, second in itertools.combinations(by_group.values(), 2):
            assert not first & second  # eight clusters, eight hues


def test_recordings_of_other_models_prompts_and_layers_are_refused(recording):
    with pytest.raises(InvalidInputError, match="recordings of synthetic and other"):
        plots.selection_map([recording, recording.replace(model="other")], 2)
    wider = dataclasses.replace(recording.geometry, max_positions=1)
    with pytest.raises(InvalidInputError, match="wanted one model"):
        plots.selection_map([recording, recording.replace(geometry=wider)], 2)
    ids = recording.token_ids.copy()
    ids[3] += 1
    with pytest.raises(InvalidInputError, match="another prompt"):
        plots.selection_map([recording, recording.replace(token_ids=ids)], 2)
    with pytest.raises(InvalidInputError, match=r"got 0; wanted a recorded layer: \(2, 3\)"):
        plots.selection_map(recording, 0)
    with pytest.raises(InvalidInputError, match="no recording"):
        plots.selection_map([], 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"head": 2}, "head: got 2; wanted 0 to 1"), ({"head": -1}, "head"), ({"columns": 0}, "columns"),
     ({"columns": 513}, "1 to 512"), ({"steps": (0, 9)}, "steps"), ({"steps": (3, 3)}, "steps"),
     ({"positions": (0, 69)}, "positions"), ({"positions": (-1, 5)}, "positions")],
)  # fmt: skip
def test_invalid_arguments_are_refused(recording, arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.selection_map(recording, 2, **arguments)


def test_an_unknown_colour_metric_band_or_projection_names_a_similar_one(recording):
    with pytest.raises(UnknownNameError, match="did you mean 'attention'"):
        plots.selection_map(recording, 2, color="attentoin")
    table = pd.DataFrame({"method": ["a"], "budget": [1], "recall": [0.5]})
    with pytest.raises(UnknownNameError, match="did you mean 'recall'"):
        plots.recall_by_budget(table, metric="recal")
    with pytest.raises(UnknownNameError, match="one of range, std"):
        plots.recall_by_budget(table, band="sem")
    with pytest.raises(UnknownNameError, match="did you mean 'tsne'"):
        plots.semantic_space(np.eye(4), projection="t-sne")


@pytest.mark.parametrize("band", ["range", "std", None])
def test_recall_by_budget_draws_the_mean_and_the_band(table, band):
    figure = plots.recall_by_budget(table, band=band)
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines+markers"}
    assert list(lines) == ["clusterkv", "quest", "mine"]
    for method, share in (("clusterkv", 0.5), ("quest", 0.25), ("mine", 0.125)):
        line, style = lines[method], plots.method_style(method)
        assert line.x.tolist() == [128, 256, 512]
        np.testing.assert_allclose(line.y, share * 1.1)
        assert (line.line.color, line.line.dash, line.marker.symbol) == (style["color"], style["dash"], style["symbol"])
    bands = [trace for trace in figure.data if trace.fill]
    spread = {"range": 0.1, "std": np.std([1.0, 1.1, 1.2], ddof=1), None: None}[band]
    assert len(bands) == (0 if band is None else 3)
    if bands:
        np.testing.assert_allclose(bands[0].y, 0.5 * np.array([1.1 + spread] * 3 + [1.1 - spread] * 3))
    assert figure.layout.xaxis.type == "log"
    assert list(figure.layout.xaxis.tickvals) == [128, 256, 512]
    assert list(figure.layout.xaxis.ticktext) == ["128", "256", "512"]


def test_recall_by_budget_of_one_run_has_no_band_and_leaves_out_rows_without_a_value(table):
    table = table.drop_duplicates(["method", "budget"])
    table.loc[table["budget"] == 128, "recall"] = np.nan
    figure = plots.recall_by_budget(table)
    assert [trace.x.tolist() for trace in figure.data] == [[256, 512]] * 3
    assert all(trace.fill is None for trace in figure.data)


def test_recall_by_budget_other_metrics_shares_and_titles(table):
    table.attrs = {"model": "SmolLM2", "prompt_length": 2048, "seed": 7}
    figure = plots.recall_by_budget(table, metric="output_error")
    assert figure.layout.yaxis.title.text == "relative error of the attention output"
    np.testing.assert_allclose(figure.data[1].y, 0.5)
    assert all(part in figure.layout.title.text for part in ("SmolLM2", "2,048 tokens", "seed 7", "mean of 3 runs"))
    shares = plots.recall_by_budget(table.assign(budget=table["budget"] / 1024), title="mine")
    assert shares.layout.xaxis.title.text == "budget (share of the prompt)"
    assert shares.layout.title.text == "mine"


def test_many_budgets_have_readable_ticks():
    budgets = np.arange(100, 2100, 10)
    figure = plots.recall_by_budget(pd.DataFrame({"method": "quest", "budget": budgets, "recall": 0.5}))
    ticks = np.array(figure.layout.xaxis.tickvals)
    assert set(ticks) <= set(budgets)
    assert 4 <= len(ticks) <= 9
    assert (np.diff(np.log2(ticks)) >= np.log2(21) / 8 - 0.2).all()


def test_tables_without_columns_rows_or_positive_budgets_are_refused(table):
    with pytest.raises(InvalidInputError, match="also attention_mass"):
        plots.recall_by_budget(table, metric="attention_mass")
    with pytest.raises(InvalidInputError, match="no row"):
        plots.recall_by_budget(table.iloc[:0])
    with pytest.raises(InvalidInputError, match="budgets above 0"):
        plots.recall_by_budget(table.assign(budget=0))
