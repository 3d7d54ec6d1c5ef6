"""Costs of methods: throughput by batch, and the time to build an index by length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..metrics.fits import growth_exponent
from .axes import amounts, log_ticks, one_value, run_title, size_axis, unit_of
from .labels import escape, set_title
from .score_curves import check_positive, curve, curve_of, numbers, rows_of
from .theme import ink, legend_entry, styles_of, template_name
from .themed_figure import Figure

if TYPE_CHECKING:
    import pandas as pd


def throughput_by_batch(
    table: pd.DataFrame, *, hardware: str | None = None, title: str | None = None, dark: bool = False
) -> go.Figure:
    """Throughput in tokens per second against the batch, one curve per method, until memory runs out.

    As in CTkvr figure 7; CentroidKV table 12 gives only the best throughput. `table` has the columns method, batch and
    tokens_per_s. A row without a number is a batch that ran, or would run, out of memory; it is marked at 0. Rows that
    repeat a method and batch become their mean. If "full" is among the methods, the legend gives each method's best
    throughput and largest measured batch as multiples of those of "full". `hardware` as for `latency`.

    Raises InvalidInputError for missing columns, no row with a number, or negative numbers.

    >>> import pandas as pd
    >>> rows = {"method": ["full"] * 2 + ["quest"], "batch": [1, 2, 2], "tokens_per_s": [10.0, None, 30.0]}
    >>> [line.name for line in throughput_by_batch(pd.DataFrame(rows)).data if line.name]
    ['full', 'out of memory', 'quest: 3× full, batch 2×']
    """
    amounts("throughput_by_batch", table, ["method", "batch"], "tokens_per_s")
    rows = numbers("throughput_by_batch", rows_of("throughput_by_batch", table, ["method", "batch"]), "batch")
    check_positive("throughput_by_batch: batch", rows["batch"], "batches")
    rows = rows.assign(tokens_per_s=table["tokens_per_s"])
    one_value("throughput_by_batch", table, "length")
    best = rows.dropna().groupby("method").agg({"tokens_per_s": "max", "batch": "max"})
    figure, style = Figure(), styles_of(table, dark)
    explained = False
    for method in rows["method"].unique():
        means = rows[rows["method"] == method].groupby("batch")["tokens_per_s"].mean()
        measured = means.dropna()
        if len(measured):
            label = escape(str(method)) + _relative_to_full(best, method)
            figure.add_trace(curve_of(label, measured, style(str(method)), "batch %{x}: %{y:,.1f} tokens/s"))
        failed = means.index[means.isna()]
        if len(failed):
            color = style(str(method))["color"]
            figure.add_traces(_out_of_memory(str(method), color, measured, failed.min(), not explained, dark))
            explained = True
    size_axis(figure, rows["batch"], "batch (sequences)")
    figure.update_layout(template=template_name(dark), height=500, hovermode="closest")
    figure.update_yaxes(title_text="throughput (tokens/s)", rangemode="tozero")
    set_title(figure, run_title(table, title, "Throughput by batch", hardware))
    return figure


def index_build_time(
    table: pd.DataFrame, *, hardware: str | None = None, title: str | None = None, dark: bool = False
) -> go.Figure:
    """Time to build an index against the length, one line per index, both axes logarithmic, slopes in the legend.

    As in CTkvr figure 8 and table 9. `table` has the columns index (a method or any name), length and seconds; rows
    that repeat an index and length become their mean. The slope is the exponent of the power law that
    `kvviz.metrics.growth_exponent` fits: 1 is linear growth, 2 is quadratic. Marks are measured, lines are fitted.
    `hardware` as for `latency`.

    Raises InvalidInputError for missing columns, no rows, or numbers that are not above 0.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"index": ["k-means"] * 2, "length": [1024, 4096], "seconds": [0.01, 0.16]})
    >>> index_build_time(table).data[0].name
    'k-means: slope 2.0'
    """
    rows = rows_of("index_build_time", table, ["index", "length", "seconds"])
    rows = numbers("index_build_time", rows, "seconds", "length")
    for column in ("seconds", "length"):
        check_positive(f"index_build_time: {column}", rows[column], "numbers")
    scale, unit = unit_of(float(rows["seconds"].max()))
    figure, style = Figure(), styles_of(table, dark)
    for index in rows["index"].unique():
        means = rows[rows["index"] == index].groupby("length")["seconds"].mean()
        figure.add_traces(_growth(str(index), means, scale, unit, style(str(index))))
    size_axis(figure, rows["length"], "length (tokens)")
    figure.update_layout(template=template_name(dark), height=420, hovermode="closest")
    log_ticks(figure, f"time to build ({unit})")
    set_title(figure, run_title(table, title, "Time to build an index, by length", hardware))
    return figure


def _growth(index: str, seconds: pd.Series[Any], scale: float, unit: str, style: dict[str, str]) -> list[go.Scatter]:
    """Marks at the measured times, and the line of the power law fitted to them if there are at least two lengths."""
    name, lengths = escape(index), seconds.index.to_numpy(float)
    hover = f"%{{x:,}} tokens: %{{y:.3g}} {unit}"
    if len(lengths) == 1:
        return [curve(name, lengths, seconds.to_numpy() / scale, style, hover, lines=False)]
    exponent, at_1 = growth_exponent(lengths, seconds)
    name += f": slope {exponent:.1f}"
    ends = lengths[[0, -1]]
    line = curve(name, ends, at_1 * ends**exponent / scale, style, hover, markers=False, show_legend=False)
    return [
        curve(name, np.array([np.nan]), np.array([np.nan]), style, hover),  # shows line and mark together in the legend
        line.update(hoverinfo="skip", hovertemplate=None),
        curve(name, lengths, seconds.to_numpy() / scale, style, hover, lines=False, show_legend=False),
    ]


def _relative_to_full(best: pd.DataFrame, method: Any) -> str:
    """A method's best throughput and largest batch as multiples of those of "full", for the legend."""
    if method == "full" or "full" not in best.index or method not in best.index:
        return ""
    ratio = best.loc[method] / best.loc["full"]
    return f": {ratio['tokens_per_s']:.2g}× full, batch {ratio['batch']:.3g}×"


def _out_of_memory(
    method: str, color: str, measured: Any, batch: float, in_legend: bool, dark: bool
) -> list[go.Scatter]:
    """A line that falls from the last measured batch to a cross at `batch`, which did not fit into memory."""
    last = ([float(measured.index[-1])], [float(measured.iloc[-1])]) if len(measured) else ([], [])
    fall = go.Scatter(
        x=[*last[0], float(batch)], y=[*last[1], 0.0], mode="lines", line={"color": color, "width": 1, "dash": "dot"},
        showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    sign = {"symbol": "x-thin", "size": 9}
    cross = go.Scatter(
        x=[float(batch)], y=[0.0], mode="markers", showlegend=False, cliponaxis=False,
        marker={**sign, "line": {"width": 2, "color": color}},
        hovertemplate=f"{escape(method)}<br>out of memory at batch %{{x}}<extra></extra>",
    )  # fmt: skip
    if not in_legend:
        return [fall, cross]
    marker = {**sign, "line": {"width": 2, "color": ink(dark).foreground}}
    return [fall, cross, legend_entry("markers", "out of memory", marker=marker, hoverinfo="skip", legendrank=2000)]
