"""Latency: the time of a run by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError, UnknownNameError
from ..trace.timeline import PHASES, Timeline
from .axes import amounts, log_ticks, one_value, run_title, several, size_axis, unit_of
from .labels import SEPARATOR, escape, heading, set_title
from .parts import END_TO_END, in_order, part_marker, part_of
from .score_curves import curve
from .theme import ink, styles_of, template_name
from .themed_figure import Figure

if TYPE_CHECKING:
    import pandas as pd

_OVER = ("method", "length", "batch")
_LOG_FROM = 50  # times that differ by a larger factor would crowd at the bottom of a linear axis


class Cost(NamedTuple):
    """Seconds of one part of a method's time; `x` is the length or batch if the figure has such an axis."""

    method: str
    part: str
    x: float
    seconds: float


def latency(
    table: pd.DataFrame | Mapping[str, Timeline],
    *,
    over: Literal["method", "length", "batch"] | None = None,
    phase: Literal["prefill", "decode"] = "decode",
    hardware: str | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Time by method: bars stacked by part, or one curve per method over length or batch.

    As in ClusterKV (arXiv 2412.03213) figures 12 and 13, PQCache (arXiv 2407.12820) figures 11 and 12, CentroidKV
    tables 6 and 7, CTkvr table 13. `table` has the columns method, part and seconds, and length or batch if there are
    several; rows that repeat all of these become their mean. Known parts: "prefill", "attention", "select", "transfer",
    "store", "build", "rest"; others are drawn too. The part "end to end" is the whole time as measured: the sum of the
    parts is larger if some ran at the same time, and smaller if some work was not measured.

    `table` may also map methods to the timelines of their runs (`generate(..., timeline=True)`). Then the parts of
    `phase` are drawn, for "decode" as means over all steps. "rest" is the model's projections and FFNs, "store" the
    writing of keys and values.

    `over`: "method" draws bars; "length" and "batch" draw curves of the whole time. By default curves if the table has
    several lengths or batches, otherwise bars. The time axis of curves is logarithmic if times differ by a factor of
    more than 50. `hardware` names the machine, by default `table.attrs["hardware"]`; "model", "prompt_length", "budget"
    and "seed" are read from there too.

    Raises InvalidInputError for missing columns, no rows, negative times, several lengths or batches without an axis
    for them, or timelines without a pass of that phase; UnknownNameError for an unknown `over` or `phase`.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"method": ["quest"] * 2, "part": ["select", "attention"], "seconds": [0.001, 0.004]})
    >>> [(bar.name, bar.x[0]) for bar in latency(table).data if bar.type == "bar"]
    [('attention', 4.0), ('select', 1.0)]
    """
    if over is not None and over not in _OVER:
        raise UnknownNameError("latency: over", str(over), _OVER)
    if isinstance(table, Mapping):
        if phase not in PHASES:
            raise UnknownNameError("latency: phase", str(phase), PHASES)
        if over not in (None, "method"):
            raise InvalidInputError("latency: over", repr(over), 'a table, or over="method" with timelines')
        costs, what = _of_timelines(table, phase), "a decode step" if phase == "decode" else "the prefill"
        descriptions = [timeline.description.split(SEPARATOR) for timeline in table.values()]
        shared = [part for part in descriptions[0] if all(part in description for description in descriptions)]
        text = heading(title, [f"Time of {what}, by part", *shared, hardware or ""])
        figure = _bars(costs, dark)
    else:
        axis: str = over or next((name for name in _OVER[1:] if several(table, name)), "method")
        costs = _of_table(table, axis)
        parts = {cost.part for cost in costs}
        what = f"Time of {parts.pop()}" if len(parts) == 1 else "Time"
        text = run_title(table, title, f"{what} by {'part' if axis == 'method' else axis}", hardware)
        figure = _bars(costs, dark) if axis == "method" else _curves(costs, axis, styles_of(table, dark), dark)
    set_title(figure, text)
    return figure


def _of_table(table: pd.DataFrame, over: str) -> list[Cost]:
    """Costs in a table: means over the rows that repeat a method, part and length or batch."""
    one_value("latency", table, *(name for name in _OVER[1:] if name != over))
    keys = ["method", "part"] if over == "method" else ["method", "part", over]
    rows = amounts("latency", table, keys, "seconds")
    means = rows.groupby(keys, sort=False)["seconds"].mean().reset_index()
    places = [0.0] * len(means) if over == "method" else means[over].astype(float)
    columns = zip(means["method"], means["part"], places, means["seconds"], strict=True)
    return [Cost(str(method), str(part), float(place), float(seconds)) for method, part, place, seconds in columns]


def _of_timelines(timelines: Mapping[str, Timeline], phase: str) -> list[Cost]:
    """Costs of a phase: its parts, and its passes as the part "end to end"; for "decode", means over the steps."""
    if not timelines:
        raise InvalidInputError("latency", "no timeline", "at least one")
    costs = []
    for method, timeline in timelines.items():
        events = [event for event in timeline.events if event.phase == phase]
        passes = sum(event.stream == "pass" for event in events)
        if not passes:
            raise InvalidInputError("latency", f"no {phase} pass in the timeline of {method}", "at least one")
        seconds: dict[str, float] = {}
        for event in events:
            part = part_of(event) or END_TO_END
            seconds[part] = seconds.get(part, 0.0) + event.end_s - event.start_s
        runs = passes if phase == "decode" else 1  # a prompt's passes are chunks of one prefill
        costs += [Cost(str(method), part, 0.0, total / runs) for part, total in seconds.items()]
    return costs


def _whole(costs: list[Cost]) -> dict[tuple[str, float], float]:
    """Total seconds of each method and x: measured end to end if available, otherwise the sum of the parts."""
    sums: dict[tuple[str, float], float] = {}
    for cost in costs:
        if cost.part != END_TO_END:
            sums[cost.method, cost.x] = sums.get((cost.method, cost.x), 0.0) + cost.seconds
    return sums | {(cost.method, cost.x): cost.seconds for cost in costs if cost.part == END_TO_END}


def _bars(costs: list[Cost], dark: bool) -> go.Figure:
    """Horizontal bars, since methods have long names."""
    methods = list(dict.fromkeys(cost.method for cost in costs))
    whole = {method: seconds for (method, _), seconds in _whole(costs).items()}
    stacked: dict[str, float] = dict.fromkeys(methods, 0.0)
    scale, unit = unit_of(max(whole.values()))
    figure = Figure()
    for number, part in enumerate(in_order([cost.part for cost in costs if cost.part != END_TO_END])):
        rows = [cost for cost in costs if cost.part == part]
        for row in rows:
            stacked[row.method] += row.seconds
        marker = part_marker(part, number, dark)
        figure.add_bar(
            x=[row.seconds / scale for row in rows], y=[escape(row.method) for row in rows], orientation="h",
            name=escape(part), width=0.72, marker={**marker, "line": {"width": 0.6, "color": ink(dark).background}},
            customdata=[row.seconds / whole[row.method] if whole[row.method] else 0 for row in rows],
            hovertemplate=f"%{{y}}<br>%{{fullData.name}}: %{{x:.3g}} {unit}, %{{customdata:.0%}} of the whole"
            "<extra></extra>",
        )  # fmt: skip
    measured = [cost for cost in costs if cost.part == END_TO_END]
    if measured:
        figure.add_scatter(
            x=[cost.seconds / scale for cost in measured], y=[escape(cost.method) for cost in measured],
            mode="markers", name="end to end", hovertemplate=f"%{{y}}<br>%{{x:.3g}} {unit}<extra></extra>",
            marker={"symbol": "line-ns", "size": 13, "line": {"width": 2, "color": ink(dark).foreground}},
        )  # fmt: skip
    ends = [max(stacked[method], whole[method]) / scale for method in methods]
    figure.add_scatter(
        x=ends, y=[escape(method) for method in methods], mode="text", textposition="middle right", hoverinfo="skip",
        text=[f" {whole[method] / scale:.3g}" for method in methods], showlegend=False, cliponaxis=False,
    )  # fmt: skip
    figure.update_layout(
        template=template_name(dark), barmode="stack", legend_traceorder="normal", height=190 + 34 * len(methods)
    )
    figure.update_xaxes(title_text=f"time ({unit})", range=[0, max(max(ends) * 1.12, 1e-12)])
    figure.update_yaxes(
        type="category", categoryorder="array", categoryarray=[escape(method) for method in methods],
        autorange="reversed", showgrid=False, ticks="", dtick=1,
    )  # fmt: skip
    return figure


def _curves(costs: list[Cost], over: str, style_in: Callable[[str], dict[str, str]], dark: bool) -> go.Figure:
    whole = _whole(costs)
    scale, unit = unit_of(max(whole.values()))
    figure = Figure()
    for method in dict.fromkeys(cost.method for cost in costs):
        places = np.array(sorted(x for name, x in whole if name == method))
        times = np.array([whole[method, x] / scale for x in places])
        hover = f"{over} %{{x:,}}: %{{y:.3g}} {unit}"
        figure.add_trace(curve(escape(method), places, times, style_in(method), hover))
    size_axis(figure, [cost.x for cost in costs], "length (tokens)" if over == "length" else "batch (sequences)")
    figure.update_layout(template=template_name(dark), height=420, hovermode="closest")
    least, most = min(whole.values()), max(whole.values())
    if least > 0 and most / least > _LOG_FROM:
        log_ticks(figure, f"time ({unit})")
    else:
        figure.update_yaxes(title_text=f"time ({unit})", rangemode="tozero")
    return figure
