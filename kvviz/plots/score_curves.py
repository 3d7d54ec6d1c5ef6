"""What figures of scores share: tables checked, a curve with a band or bars, the axis of budgets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .labels import heading
from .theme import translucent

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
_MAX_TICKS = 8


def rows_of(
    operation: str, table: pd.DataFrame, columns: Sequence[str], levels: Collection[str] | None = None
) -> pd.DataFrame:
    """Those columns of the rows that have a value in each of them.

    With `levels`, the budget may be missing in rows of the methods that `ignoring_budget` returns. Raises
    InvalidInputError where a column is missing or no row is left.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise InvalidInputError(f"{operation}: columns", list(table.columns), f"also {', '.join(missing)}")
    rows = table[list(dict.fromkeys(columns))]
    if levels is None or "budget" not in columns:
        rows = rows.dropna()
    else:
        rows = rows.dropna(subset=[name for name in rows.columns if name != "budget"])
        rows = rows[rows["budget"].notna() | rows["method"].isin(ignoring_budget(rows, levels))]
    if rows.empty:
        raise InvalidInputError(operation, f"no row with a value of {columns[-1]}", "at least one")
    return rows


def ignoring_budget(rows: pd.DataFrame, levels: Collection[str]) -> set[Any]:
    """The methods in `levels`, and those whose rows all lack a budget."""
    return {name for name, own in rows.groupby("method") if name in levels or own["budget"].isna().all()}


def numbers(operation: str, rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows with that column as finite float64; raises InvalidInputError where it is no such thing."""
    try:
        found = rows[column].astype(float)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{operation}: {column}", f"values of type {rows[column].dtype}", "numbers") from None
    if not np.isfinite(found).all():
        raise InvalidInputError(f"{operation}: {column}", "an infinite value", "finite numbers")
    return rows.assign(**{column: found})


def check_positive(operation: str, values: pd.Series[Any], name: str) -> None:
    """Raise InvalidInputError for a value that is not a finite number above 0, which no logarithmic axis can show."""
    found = values.to_numpy(float)
    wrong = found[~(np.isfinite(found) & (found > 0))]
    if len(wrong):
        raise InvalidInputError(operation, wrong[0], f"{name} above 0")


def curve(
    label: str, x: Array, y: Array, style: dict[str, str], hover: str, counts: Array | None = None,
    lines: bool = True, markers: bool = True, show_legend: bool = True,
) -> go.Scatter:  # fmt: skip
    """A curve in a style from `method_style`; `label` is escaped, `hover` a template that may use `counts`."""
    color = style["color"]
    return go.Scatter(
        x=x, y=y, customdata=counts, mode="+".join(["lines"] * lines + ["markers"] * markers),
        name=label, legendgroup=label, showlegend=show_legend,
        line={"color": color, "dash": style["dash"], "width": 2},
        marker={"color": color, "symbol": style["symbol"], "size": 7, "line": {"width": 1.2, "color": color}},
        hovertemplate=f"%{{fullData.name}}<br>{hover}<extra></extra>",
    )  # fmt: skip


def band(line: go.Scatter, low: Array, high: Array) -> go.Scatter:
    """The area from `low` to `high` around a curve, in its colour."""
    return go.Scatter(
        x=np.concatenate([line.x, line.x[::-1]]), y=np.concatenate([high, low[::-1]]),
        mode="lines", line={"width": 0}, fill="toself", fillcolor=translucent(line.line.color, 0.16),
        name=f"{line.name}, band", legendgroup=line.legendgroup, showlegend=False, hoverinfo="skip",
    )  # fmt: skip


def error_bars(line: go.Scatter, low: Array, high: Array) -> go.Scatter:
    """The curve itself, with bars from `low` to `high`."""
    return line.update(error_y={
        "type": "data", "symmetric": False, "array": np.maximum(high - line.y, 0),
        "arrayminus": np.maximum(line.y - low, 0), "color": line.line.color, "thickness": 1.2, "width": 3,
    })  # fmt: skip


def spread_aside(count: int) -> Array:
    """Factors close to 1 that set `count` curves on a logarithmic axis beside each other, so that bars can be told."""
    return np.asarray(2.0 ** (0.035 * (np.arange(count) - (count - 1) / 2)))


def budget_text(budget: float) -> str:
    """A budget in print: tokens, or a share of the prompt where it is below 1."""
    return f"{budget:.3g}" if budget < 1 else f"{budget:,.0f}"


def budget_axis(budgets: Array) -> dict[str, Any]:
    """A logarithmic axis with ticks at the budgets: tokens a KV head, or shares where all are below 1."""
    budgets = np.unique(np.asarray(budgets, float))
    ticks = spread_ticks(budgets)
    return {
        "type": "log", "tickvals": ticks, "ticktext": [budget_text(tick) for tick in ticks],
        "title_text": "budget (share of the prompt)" if (budgets < 1).all() else "budget (tokens a KV head)",
    }  # fmt: skip


def spread_ticks(values: Array) -> list[float]:
    """The values themselves, ascending; where they crowd, only those far enough from the one before to be read."""
    if len(values) <= 1:
        return [float(value) for value in values]
    apart = np.log2(values[-1] / values[0]) / _MAX_TICKS
    ticks = [float(values[0])]
    for value in values[1:]:
        if np.log2(value / ticks[-1]) >= apart:
            ticks.append(float(value))
    return ticks


def about(table: pd.DataFrame, given: str | None, what: str, *more: str) -> str:
    """The title: `given`, or what is drawn, of which model, length, layers, budget and seed (from `table.attrs`), and
    `more`.
    """
    known = dict(table.attrs)
    if "seed" in table.columns and table["seed"].nunique() == 1:  # of a table with several, one may be picked
        known["seed"] = table["seed"].iloc[0]
    return heading(given, [
        what,
        str(known.get("model", "")),
        f"{known['prompt_length']:,} tokens" if "prompt_length" in known else "",
        f"layer{'s' * (len(known['layers']) > 1)} {', '.join(map(str, known['layers']))}" if "layers" in known else "",
        f"budget {budget_text(known['budget'])}" if "budget" in known else "",
        f"seed {known['seed']}" if "seed" in known else "",
        *more,
    ])  # fmt: skip
