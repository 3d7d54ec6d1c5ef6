"""Maps of attended tokens and bars of ledgers show the numbers of recordings and ledgers."""

from __future__ import annotations

import dataclasses
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvviz import metrics, plots
from kvviz.errors import InvalidInputError
from kvviz.trace import Ledger
from tests.plots import plot_data

positions = st.lists(st.sets(st.integers(0, 19)), min_size=4, max_size=4)


def rows_of(sets):
    rows = np.full((len(sets), 20), -1)
    for row, chosen in zip(rows, sets, strict=True):
        row[: len(chosen)] = sorted(chosen)
    return rows


@given(positions, positions, st.integers(0, 5), st.integers(0, 5), st.sampled_from([1, 2, 4]))
def test_wasted_tokens_are_counted_per_part_of_the_text(selected, true, sinks, recent, heads):
    counts = metrics.wasted_tokens(
        rows_of(selected), rows_of(true), prompt_length=15, sinks=sinks, recent=recent, heads=heads
    )
    expected = dict.fromkeys(("sinks", "recent", "selected", "generated"), 0.0)
    for head in range(heads):
        rows = slice(head * 4 // heads, (head + 1) * 4 // heads)
        for place in set().union(*selected[rows]) - set().union(*true[rows]):
            part = "generated" if place >= 15 else "recent" if place >= 15 - recent else "selected"
            expected["sinks" if place < sinks else part] += 1 / heads
    assert counts == pytest.approx(expected)


def test_wasted_tokens_of_other_shapes_or_windows_are_refused():
    rows = np.zeros((3, 2), int)
    for arguments in ({"heads": 2}, {"sinks": 9}, {"recent": -1}):
        with pytest.raises(InvalidInputError, match="wasted_tokens"):
            metrics.wasted_tokens(rows, rows, **{"prompt_length": 8, "sinks": 0, "recent": 0, **arguments})
    with pytest.raises(InvalidInputError, match=r"\[R, S\] each"):
        metrics.wasted_tokens(rows, rows[:1], prompt_length=8, sinks=0, recent=0)


@pytest.fixture(scope="module")
def recording():
    return plot_data.recording()


def cells(bars, layers=4, heads=2):
    """The values of a map [heads, layers]; NaN without a bar."""
    grid = np.full((heads, layers), np.nan)
    grid[np.array(bars.base + 0.5, int), bars.x] = bars.marker.color
    return grid


def test_layer_budgets_are_means_over_the_steps(recording):
    figure = plots.layer_budgets(recording)
    line, grid = figure.data[0], cells(figure.data[1])
    assert np.isnan(grid[:, :2]).all()  # dense
    for layer in (2, 3):
        for head in range(2):
            counts = [len({*recording.indices(step, layer)[head].tolist()} - {-1}) for step in range(recording.steps)]
            assert grid[head, layer] == pytest.approx(np.mean(counts))
        assert line.y[layer] == pytest.approx(grid[:, layer].mean())
    assert "all tokens in layers 0, 1" in figure.layout.annotations[0].text
    title = figure.layout.title.text.replace("<br>", " ")
    assert all(part in title for part in ("synthetic", "60 tokens", "budget 24", "mean of 8 steps"))


def test_layer_budgets_of_several_share_a_scale_and_keep_their_labels(recording):
    merged = recording.replace(
        method="centroidkv",
        events={2: dataclasses.replace(recording.events[2], merged=np.full((8, 2), 100, np.int32))},
    )
    pyramid = np.outer(np.arange(4, 0, -1), [10.0, 10.0])
    figure = plots.layer_budgets({"a": recording, "<b>": merged, "pyramidkv": pyramid})
    lines, maps = figure.data[::2], [cells(bars) for bars in figure.data[1::2]]
    assert [line.name for line in lines] == ["a", "&lt;b&gt;", "pyramidkv"]
    assert lines[2].y.tolist() == [40, 30, 20, 10]
    assert maps[1][0, 2] == pytest.approx(maps[0][0, 2] + 100)
    assert figure.layout.coloraxis.cmax == max(np.nanmax(grid) for grid in maps)
    same = plots.layer_budgets([recording, recording.replace(budget=9)])
    assert [line.name for line in same.data[::2]] == ["clusterkv", "clusterkv, budget 9"]


@pytest.mark.parametrize("source", [[], {}, np.ones(3), np.array([[-1.0]]), np.array([[np.inf]]), np.empty((0, 2))])
def test_layer_budgets_of_nothing_or_of_other_shapes_are_refused(source):
    with pytest.raises(InvalidInputError, match="layer_budgets"):
        plots.layer_budgets(source)


def test_two_recordings_under_one_label_are_refused(recording):
    with pytest.raises(InvalidInputError, match="tell them apart"):
        plots.layer_budgets([recording, recording, recording])
    with pytest.raises(InvalidInputError, match="at least one step and one layer"):
        plots.layer_budgets(recording.replace(events={}))


@pytest.fixture
def ledgers(recording):
    """The recording's ledger at its last step: 4 sinks, 20 selected, 8 generated; and a merging method's."""
    ledger = Ledger(
        sinks=4, selected=20, generated=8, metadata_bytes=3 * 2**20, host_metadata_bytes=2**20,
        kept_bytes={"device": 2**20, "host": 8 * 2**20}, moved_bytes=5 * 2**20, prefetched_bytes=2**19,
    )  # fmt: skip
    return {"clusterkv": ledger, "centroidkv": Ledger(recent=6, merged=18, kept_bytes={"device": 2**21})}


def sums(figure, axis):
    """Length of each part's bars, including hatched ones, by label and part."""
    lengths = {}
    for trace in figure.data:
        if trace.xaxis == axis:
            for label, value in zip(trace.y, trace.x, strict=True):
                key = label, trace.name.removesuffix(", wasted")
                lengths[key] = lengths.get(key, 0) + value
    return {key: value for key, value in lengths.items() if value}


def test_the_bars_add_up_to_the_ledger(ledgers, recording):
    figure = plots.budget_ledger(ledgers, recordings={"clusterkv": recording})
    assert sums(figure, "x") == pytest.approx({
        ("clusterkv", "sinks"): 4, ("clusterkv", "selected"): 20, ("clusterkv", "generated"): 8,
        ("centroidkv", "recent"): 6, ("centroidkv", "merged"): 18,
    })  # fmt: skip
    assert sums(figure, "x2") == pytest.approx({
        ("clusterkv", "KV on device"): 1, ("clusterkv", "KV on host"): 8, ("clusterkv", "metadata on device"): 2,
        ("clusterkv", "metadata on host"): 1, ("centroidkv", "KV on device"): 2,
    })  # fmt: skip
    assert sums(figure, "x3") == pytest.approx({("clusterkv", "KV fetched"): 5, ("clusterkv", "metadata fetched"): 0.5})
    before = asdict(ledgers["clusterkv"])
    before["outer_metadata_bytes"] = before.pop("host_metadata_bytes")  # the name in older tables
    older = plots.budget_ledger({**ledgers, "clusterkv": before}, recordings={"clusterkv": recording})
    assert sums(older, "x2") == sums(figure, "x2")
    names = [note.text.split("<br>")[0] for note in figure.layout.annotations]
    assert names == ["tokens per KV head, last step", "MiB kept, all layers",
                     "MiB moved, all layers and steps"]  # fmt: skip


def test_what_the_oracle_leaves_out_is_hatched_in_its_part(ledgers, recording):
    figure = plots.budget_ledger(ledgers, recordings={"clusterkv": recording})
    hatched = {trace.name: trace.x.tolist() for trace in figure.data if trace.marker.pattern.shape}
    expected = {"sinks": 0.0, "selected": 0.0, "generated": 0.0}
    for layer in (2, 3):
        for chosen, best in zip(recording.indices(7, layer), recording.oracle(7, layer), strict=True):
            for place in set(chosen.tolist()) - set(best.tolist()):
                part = "sinks" if place < 4 else "selected" if place < 60 else "generated"
                expected[part] += 1 / 4  # layers × heads
    assert sum(expected.values()) == pytest.approx(
        32 * (1 - np.mean([recording.recall(7, layer).mean() for layer in (2, 3)]))
    )
    assert hatched == {f"{part}, wasted": pytest.approx([count, 0]) for part, count in expected.items() if count}
    assert "wasted" in figure.layout.annotations[0].text
    assert "wasted" not in "".join(note.text for note in plots.budget_ledger(ledgers).layout.annotations)


def test_bars_are_drawn_for_what_a_ledger_has_only(ledgers):
    figure = plots.budget_ledger(ledgers)
    labels = {
        axis: {label for trace in figure.data if trace.xaxis == axis for label in trace.y} for axis in ("x", "x3")
    }
    assert labels == {"x": {"clusterkv", "centroidkv"}, "x3": {"clusterkv"}}  # nothing moved for centroidkv
    eight = {f"method_{number}": ledgers["clusterkv"] for number in range(8)}
    assert (
        plots.budget_ledger(eight).layout.height < 24 * 8 * 3 + 200
    )  # pixels: a bar of 24 at most with what is around
    assert all(axis.dtick == 1 for axis in plots.budget_ledger(eight).select_yaxes())  # no label is left out


def test_ledgers_may_be_mappings_or_a_table(ledgers):
    mappings = {label: dataclasses.asdict(ledger) for label, ledger in ledgers.items()}
    table = pd.DataFrame([{"method": label, **mapping} for label, mapping in mappings.items()])
    figures = [plots.budget_ledger(source).to_dict()["data"] for source in (ledgers, mappings, table)]
    for bars in figures[1:]:
        assert [(bar["name"], list(bar["x"])) for bar in bars] == [(bar["name"], list(bar["x"])) for bar in figures[0]]
    quiet = plots.budget_ledger({"<i>": {"selected": 3, "kept_bytes": {"device": 10}}}, dark=True)
    assert {trace.xaxis for trace in quiet.data} == {"x", "x2"}  # nothing moved
    assert list(quiet.data[0].y) == ["&lt;i&gt;"]


@pytest.mark.parametrize(
    ("source", "message"),
    [({}, "no ledger"), ({"a": {}}, "no tokens"), ({"a": {"sinks": -1.0}}, "sinks: got -1"), ({"a": 3}, "int"),
     ({"a": {"sinks": 1, "kept_bytes": {"host": float("inf")}}}, "host: got inf"),
     ({"a": {"sinks": 1, "host_metadata_bytes": 2}}, "at most metadata_bytes"),
     (pd.DataFrame({"sinks": [1]}), "also method"), (pd.DataFrame({"method": ["a", "a"], "sinks": 1}), "twice")],
)  # fmt: skip
def test_ledgers_that_cannot_be_drawn_are_refused(source, message):
    with pytest.raises(InvalidInputError, match=message):
        plots.budget_ledger(source)


def test_a_recording_of_no_ledger_or_of_another_run_is_refused(ledgers, recording):
    with pytest.raises(InvalidInputError, match="labels mine"):
        plots.budget_ledger(ledgers, recordings={"mine": recording})
    with pytest.raises(InvalidInputError, match="the ledger's own run"):
        plots.budget_ledger({"clusterkv": {"sinks": 4}}, recordings={"clusterkv": recording})
