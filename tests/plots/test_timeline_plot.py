"""The Gantt chart of a run: events in their panels and rows, a limited number of bars, and the measured overlap."""

from __future__ import annotations

import numpy as np
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.plots.timeline_chart import MAX_BARS
from kvviz.trace.timeline import Event, Timeline
from tests.plots.test_plot_theme import assert_escaped, texts_of


def of(events, description="a run"):
    timeline = Timeline(description)
    timeline._events = sorted(Event(*event) for event in events)
    return timeline


RUN = of([
    (0.0, 4.0, "pass", "forward pass", -1, "prefill"), (0.0, 2.0, "compute", "attention", 0, "prefill"),
    (2.0, 4.0, "compute", "projections and FFN", 1, "prefill"), (1.0, 3.0, "clustering", "build", 0, "prefill"),
    (3.5, 4.5, "transfer", "offload", 1, "prefill"),
    (5.0, 6.0, "pass", "forward pass", -1, "decode"), (5.0, 5.4, "compute", "select", 0, "decode"),
    (5.4, 6.0, "host", "attention", 0, "decode"),
    (6.0, 7.0, "pass", "forward pass", -1, "decode"), (6.0, 6.4, "compute", "select", 0, "decode"),
])  # fmt: skip


def drawn(figure):
    """Start, length and layer of each bar, by part and panel."""
    return {
        (trace.name, trace.yaxis): list(zip(np.round(trace.base, 9), np.round(trace.x, 9), trace.y, strict=True))
        for trace in figure.data
    }


def test_events_are_in_their_stream_and_layer_and_panels_give_the_overlap():
    figure = plots.timeline(RUN)
    assert drawn(figure) == {
        ("rest", "y"): [(2, 2, 1)], ("attention", "y"): [(0, 2, 0)], ("select", "y"): [(5, 0.4, 0), (6, 0.4, 0)],
        ("build", "y2"): [(1, 2, 0)], ("transfer", "y3"): [(3.5, 1, 1)], ("attention", "y4"): [(5.4, 0.6, 0)],
    }  # fmt: skip
    titles = [note.text for note in figure.layout.annotations]
    assert titles == ["compute", "clustering · overlap with compute: 100% in prefill",
                      "transfer · overlap with compute: 50% in prefill",
                      "host · overlap with compute: 0% in decode"]  # fmt: skip
    assert [line.x0 for line in figure.layout.shapes][::4] == [0, 5, 6]  # a line per panel and pass
    assert figure.layout.title.text == "Timeline · a run"


def test_windows_cut_the_chart():
    assert drawn(plots.timeline(RUN, steps=(1, 2))) == {("select", "y"): [(0, 0.4, 0)]}  # from the start of the step
    assert drawn(plots.timeline(RUN, seconds=(1.5, 2.5))) == {
        ("rest", "y"): [(0.5, 0.5, 1)], ("attention", "y"): [(0, 0.5, 0)], ("build", "y2"): [(0, 1, 0)],
    }  # fmt: skip
    figure = plots.timeline(RUN, phase="decode", hardware="a machine")
    assert figure.layout.xaxis2.title.text == "time (s) from 5 s on"
    assert figure.layout.xaxis.range == (0, 2)
    assert figure.layout.title.text == "Timeline · a run · a machine"
    for wrong in ({"steps": (0, 3)}, {"steps": (1, 1)}, {"seconds": (2, 1)}, {"seconds": (4.6, 4.9)},
                  {"phase": "decode", "steps": (0, 1)}):  # fmt: skip
        with pytest.raises(InvalidInputError, match="timeline"):
            plots.timeline(RUN, **wrong)
    with pytest.raises(UnknownNameError, match="timeline: phase"):
        plots.timeline(RUN, phase="training")
    with pytest.raises(InvalidInputError, match="no event of any phase"):
        plots.timeline(Timeline())


def test_many_steps_have_few_bars_that_cover_all_events():
    rows = [
        ((at := step * 30 + layer) * 1e-3 + start, at * 1e-3 + start + 2e-4, "compute", what, layer, "decode")
        for step in range(200) for layer in range(30)
        for start, what in ((0.0, "select"), (2.5e-4, "attention"), (5e-4, "projections and FFN"))
    ]  # fmt: skip
    run = of(rows)
    figure = plots.timeline(run)
    count = sum(len(trace.x) for trace in figure.data)
    assert 0 < count <= MAX_BARS < len(rows)
    assert "closed" in figure.layout.xaxis.title.text
    columns = [np.stack([trace.base, trace.base + np.array(trace.x), trace.y], -1) for trace in figure.data]
    bars = np.concatenate(columns)
    for start, end, _, _, layer, _ in rows[:: len(rows) // 50]:
        inside = (bars[:, 0] <= start + 1e-9) & (bars[:, 1] >= end - 1e-9) & (bars[:, 2] == layer)
        assert inside.any()
    one = plots.timeline(run, seconds=(0.0, 0.03))  # one step: each event has its own bar, and the axis has no remark
    assert sum(len(trace.x) for trace in one.data) == 90
    assert one.layout.xaxis.title.text == "time (ms)"


def test_texts_of_a_timeline_are_escaped():
    run = of([(0.0, 1.0, "compute", "<b>$x$</b>", 0, "decode")], "<i>$m$</i> · a\nb")
    for figure in (plots.timeline(run, dark=True), plots.timeline(run, title="<i>$t$</i>")):
        assert_escaped(texts_of(figure))
