"""Paired differences of methods, as a forest plot: does an order that a paper claims reproduce?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError
from .labels import escape, set_title
from .panels import panels
from .score_curves import about, budget_text, hold_of, numbers, rows_of
from .theme import ink, legend_entry, styles_of, template_name

if TYPE_CHECKING:
    import pandas as pd

_ROW = 21  # pixels
_SIDE = 0.025  # share of the width between panels: only the first one has labels
_AROUND = 1.06  # the axis ends so much beyond the farthest interval
_MARK, _APART = 0.05, 0.03  # of half the axis: a mark's radius, and the gap to the word beside it
# Verdict: the symbol of its mark, and what the legend says.
_VERDICTS = {
    "reproduces": ("circle", "the whole interval is above 0"),
    "inconclusive": ("circle", "the interval contains 0"),
    "opposite": ("diamond", "the whole interval is below 0"),
}


def paired_differences(
    table: pd.DataFrame, *, across: int = 3, title: str | None = None, dark: bool = False
) -> go.Figure:
    """A forest plot: mean paired differences with their intervals, one row per pair of methods, one panel per budget.

    Each row is a claim "method > reference". Its mark is the mean difference, its line the interval; a vertical line
    stands at 0. A claim "reproduces" if the whole interval is above 0 (filled circle), is "opposite" if all of it is
    below (filled diamond), and is "inconclusive" if it contains 0 (hollow circle); the word stands beside the mark. A
    pair without a row at a budget, such as one that a method refuses, says "no result" there.

    `table` is one that `kvviz.evaluation.differences` returns, or several of them joined, each with a column reference
    (without that column: the reference in `table.attrs`). It has the columns method, budget, difference, low and high,
    and may have n (pairs) and paper, which stands beside the method's name. Rows keep the order of the table, grouped
    by paper and method. `across`: panels per row; 1 suits a printed column.

    Raises InvalidInputError for missing columns, no rows, numbers that are not finite, a low above its high, or several
    rows of one pair and budget: select one task, placement and length, or pool them.

    >>> import pandas as pd
    >>> rows = {"method": ["quest", "h2o"], "budget": 256, "difference": [0.3, 0.0], "low": [0.1, -0.2], "high": 0.5}
    >>> figure = paired_differences(pd.DataFrame(rows).assign(reference="snapkv"))
    >>> [trace.text[0] for trace in figure.data if trace.text]
    ['reproduces', 'inconclusive']
    """
    rows = _checked(table)
    half = _AROUND * float(np.abs(rows[["low", "high"]].to_numpy()).max()) or 1.0
    hold = hold_of("paired_differences", table)
    budgets = sorted(rows["budget"].unique())
    headings, pairs = _lines(rows)
    across = min(across, len(budgets))
    names = [f"budget {budget_text(budget, hold)}" for budget in budgets]
    count = len(headings) + len(pairs)
    figure, places = panels(names, across, _ROW * count, dark, side=_SIDE)
    style = styles_of(table, dark)
    for number, (budget, place) in enumerate(zip(budgets, places, strict=True)):
        _panel(figure, rows[rows["budget"] == budget], pairs, half, style, dark, place)
        for text, line in headings.items():
            if place["col"] == 1:
                _heading(figure, text, line, dark, place)
        figure.update_yaxes(
            range=[count - 0.5, -0.5], tickvals=list(pairs.values()), showgrid=False, zeroline=False,
            ticktext=[f"&gt; {escape(key[-1])}" for key in pairs], showticklabels=place["col"] == 1, **place,
        )  # fmt: skip
        axis_title = _axis_title(table) if number + across >= len(budgets) else None
        figure.update_xaxes(
            range=[-half, half], nticks=5, title_text=axis_title, zeroline=True,
            zerolinecolor=ink(dark).muted, zerolinewidth=1.5, **place,
        )  # fmt: skip
    _legend(figure, {_verdict(row) for row in rows.itertuples()}, dark)
    figure.update_layout(template=template_name(dark))
    set_title(figure, about(table, title, "Paired differences", *_interval(table, rows)), panel_titles=True)
    return figure


def _checked(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with finite numbers, with the columns reference and paper; each pair once per budget."""
    if "reference" not in table.columns and "reference" in table.attrs:
        table = table.assign(reference=table.attrs["reference"])
    if "paper" not in table.columns:
        table = table.assign(paper="")
    values = ["budget", "difference", "low", "high"]
    columns = ["paper", "method", "reference", *values, *(["n"] if "n" in table.columns else [])]
    rows = numbers("paired_differences", rows_of("paired_differences", table, columns), *values)
    if (rows["low"] > rows["high"]).any():
        raise InvalidInputError("paired_differences: low", "an interval that ends below its beginning", "low <= high")
    twice = rows[rows.duplicated(["paper", "method", "reference", "budget"])]
    if len(twice):
        row = twice.iloc[0]
        got = f"{row['method']} > {row['reference']} twice at budget {budget_text(row['budget'])}"
        raise InvalidInputError("paired_differences", got, "once: select one task, placement and length, or pool them")
    return rows


def _lines(rows: pd.DataFrame) -> tuple[dict[str, int], dict[tuple[str, str, str], int]]:
    """Lines from above, from 0: of each heading, and of each pair as (paper, method, reference)."""
    groups: dict[tuple[str, str], list[str]] = {}
    for paper, method, reference in rows[["paper", "method", "reference"]].drop_duplicates().itertuples(index=False):
        groups.setdefault((str(paper), str(method)), []).append(str(reference))
    headings: dict[str, int] = {}
    pairs: dict[tuple[str, str, str], int] = {}
    line = 0
    for (paper, method), references in groups.items():
        headings[" · ".join(escape(part) for part in (method, paper) if part)] = line
        pairs |= {(paper, method, reference): line + 1 + place for place, reference in enumerate(references)}
        line += 1 + len(references)
    return headings, pairs


def _panel(
    figure: go.Figure, rows: pd.DataFrame, lines: dict[tuple[str, str, str], int], half: float, style: Any, dark: bool,
    place: dict[str, int],
) -> None:  # fmt: skip
    """The interval, mark and word of each pair at one budget."""
    absent = dict(lines)
    for row in rows.itertuples():
        pair = (str(row.paper), str(row.method), str(row.reference))
        marks = _marks(row, absent.pop(pair), style(pair[1])["color"], half, dark)
        figure.add_traces(marks, rows=place["row"], cols=place["col"])
    if absent:
        figure.add_trace(
            go.Scatter(
                x=[_APART * half] * len(absent), y=list(absent.values()), mode="text",
                text=["no result"] * len(absent), textposition="middle right",
                textfont={"size": 11, "color": ink(dark).muted}, hoverinfo="skip", showlegend=False,
            ), **place,
        )  # fmt: skip


def _marks(row: Any, line: int, color: str, half: float, dark: bool) -> list[go.Scatter]:
    """The interval, its mark, and the verdict where no line is in its way."""
    verdict = _verdict(row)
    pair = f"{escape(str(row.method))} &gt; {escape(str(row.reference))}"
    count = f", {row.n} pairs" if hasattr(row, "n") else ""
    hover = (
        f"{pair}, budget {budget_text(row.budget)}<br>{row.difference:+.2f} [{row.low:+.2f}, {row.high:+.2f}]{count}"
    )
    interval = go.Scatter(
        x=[row.low, row.high], y=[line, line], mode="lines", line={"color": color, "width": 2}, hoverinfo="skip",
        showlegend=False,
    )  # fmt: skip
    mark = go.Scatter(
        x=[row.difference], y=[line], mode="markers", showlegend=False, cliponaxis=False,
        marker=_symbol(verdict, color, dark),
        hovertemplate=f"{hover}<br>{verdict}<extra></extra>",
    )  # fmt: skip
    low = min(row.low, row.difference - _MARK * half, 0.0)
    high = max(row.high, row.difference + _MARK * half, 0.0)
    on_left = verdict == "reproduces" or (verdict == "inconclusive" and half + low > half - high)
    colors = ink(dark)
    word = go.Scatter(
        x=[low - _APART * half if on_left else high + _APART * half], y=[line], mode="text", text=[verdict],
        textposition="middle left" if on_left else "middle right", hoverinfo="skip", showlegend=False,
        textfont={"size": 11, "color": colors.muted if verdict == "inconclusive" else colors.foreground},
    )  # fmt: skip
    return [interval, mark, word]


def _symbol(verdict: str, color: str, dark: bool) -> dict[str, Any]:
    """The mark of a verdict; a hollow one covers the interval's line."""
    fill = ink(dark).background if verdict == "inconclusive" else color
    return {"symbol": _VERDICTS[verdict][0], "size": 9, "color": fill, "line": {"width": 2, "color": color}}


def _verdict(row: Any) -> str:
    """What a pair's interval says about the claim."""
    return "reproduces" if row.low > 0 else "opposite" if row.high < 0 else "inconclusive"


def _heading(figure: go.Figure, text: str, line: int, dark: bool, place: dict[str, int]) -> None:
    """A group's heading over its rows, from the left edge of the first panel."""
    figure.add_annotation(
        x=0, y=line, xref="x domain", yref="y", xanchor="left", yanchor="middle", showarrow=False, text=text,
        align="left", borderpad=1, bgcolor=ink(dark).background, **place,
    )  # fmt: skip


def _legend(figure: go.Figure, drawn: set[str], dark: bool) -> None:
    for verdict, (_, meaning) in _VERDICTS.items():
        if verdict in drawn:
            marker = _symbol(verdict, ink(dark).foreground, dark)
            figure.add_trace(legend_entry("markers", f"{verdict}: {meaning}", marker=marker, hoverinfo="skip"))


def _axis_title(table: pd.DataFrame) -> str:
    """What the differences are of, if the table says so."""
    metrics = list(table["metric"].unique()) if "metric" in table.columns else []
    return f"difference in {escape(str(metrics[0]))}" if len(metrics) == 1 else "difference"


def _interval(table: pd.DataFrame, rows: pd.DataFrame) -> list[str]:
    """For the title: how many pairs a mean has, and what the lines are."""
    parts = []
    if "n" in rows.columns:
        least, most = int(rows["n"].min()), int(rows["n"].max())
        parts.append(f"mean of {least} pairs" if least == most else f"means of {least} to {most} pairs")
    confidence = table.attrs.get("confidence")
    parts.append(f"lines: {confidence:.0%} interval" if confidence else "lines: intervals")
    return parts
