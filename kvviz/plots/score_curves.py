"""Shared parts of figures of scores: checks of tables, a curve with a band or bars, the axis of budgets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInputError
from ..metrics.memory import bytes_text
from .labels import heading
from .theme import translucent

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
_MAX_TICKS = 8


def rows_of(
    operation: str, table: pd.DataFrame, columns: Sequence[str], levels: Collection[str] | None = None
) -> pd.DataFrame:
    """The chosen columns of the rows that have a value in each of them.

    With `levels`, the methods that `ignoring_budget` returns may lack a budget. Raises InvalidInputError for a missing
    column, or if no row is left.
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
    return {name for name, group in rows.groupby("method") if name in levels or group["budget"].isna().all()}


def numbers(operation: str, rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The rows with these columns as finite float64; raises InvalidInputError for other values."""
    for column in columns:
        try:
            values = rows[column].astype(float)
        except (TypeError, ValueError):
            got = f"values of type {rows[column].dtype}"
            raise InvalidInputError(f"{operation}: {column}", got, "numbers") from None
        if not np.isfinite(values).all():
            raise InvalidInputError(f"{operation}: {column}", "an infinite value", "finite numbers")
        rows = rows.assign(**{column: values})
    return rows


def check_positive(operation: str, values: pd.Series[Any], name: str) -> None:
    """Raise InvalidInputError for a value that is not finite and above 0, since a logarithmic axis cannot show it."""
    array = values.to_numpy(float)
    invalid = array[~(np.isfinite(array) & (array > 0))]
    if len(invalid):
        raise InvalidInputError(operation, invalid[0], f"{name} above 0")


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


def curve_of(
    label: str, means: pd.Series[Any], style: dict[str, str], hover: str, counts: Array | None = None, **shown: bool
) -> go.Scatter:
    """The `curve` of the values of a Series over its index."""
    return curve(label, means.index.to_numpy(float), means.to_numpy(float), style, hover, counts, **shown)


def band(line: go.Scatter, low: Array, high: Array) -> go.Scatter:
    """The area from `low` to `high` around a curve, in its colour."""
    return go.Scatter(
        x=np.concatenate([line.x, line.x[::-1]]), y=np.concatenate([high, low[::-1]]),
        mode="lines", line={"width": 0}, fill="toself", fillcolor=translucent(line.line.color, 0.16),
        name=f"{line.name}, band", legendgroup=line.legendgroup, showlegend=False, hoverinfo="skip",
    )  # fmt: skip


def error_bars(line: go.Scatter, low: Array, high: Array) -> go.Scatter:
    """The same curve with bars from `low` to `high`."""
    return line.update(error_y={
        "type": "data", "symmetric": False, "array": np.maximum(high - line.y, 0),
        "arrayminus": np.maximum(line.y - low, 0), "color": line.line.color, "thickness": 1.2, "width": 3,
    })  # fmt: skip


def spread_aside(count: int) -> Array:
    """Factors close to 1 that shift `count` curves apart on a logarithmic axis, so that their bars do not overlap."""
    return np.asarray(2.0 ** (0.035 * (np.arange(count) - (count - 1) / 2)))


def hold_of(operation: str, table: pd.DataFrame) -> str:
    """What the table's budgets hold equal: "tokens" or "bytes", from its column hold or its `attrs`.

    Raises InvalidInputError for a table with budgets of both kinds.
    """
    known = set(table["hold"].dropna()) - {""} if "hold" in table.columns else {table.attrs.get("hold", "tokens")}
    if len(known) > 1:
        wanted = 'rows of one: kvviz.evaluation.of_hold(table, "bytes") or "tokens"'
        raise InvalidInputError(f"{operation}: hold", "budgets in tokens and in bytes", wanted)
    return str(*known) or "tokens"


def budget_text(budget: float, hold: str = "tokens") -> str:
    """A budget as text: tokens or bytes, or a share if it is below 1."""
    if budget < 1:
        return f"{budget:.3g}" + " of the bytes" * (hold == "bytes")
    return bytes_text(budget) if hold == "bytes" else f"{budget:,.0f}"


def budget_axis(budgets: Array, hold: str = "tokens") -> dict[str, Any]:
    """A logarithmic axis with ticks at the budgets: tokens per KV head, or shares if all are below 1.

    With `hold` "bytes" they are bytes per layer, or shares of the full cache's bytes.
    """
    budgets = np.unique(np.asarray(budgets, float))
    ticks = spread_ticks(budgets)
    names = {
        ("tokens", False): "budget (tokens per KV head)", ("tokens", True): "budget (share of the prompt)",
        ("bytes", False): "budget (bytes per layer)", ("bytes", True): "budget (share of the cache's bytes)",
    }  # fmt: skip
    text = [bytes_text(tick) if hold == "bytes" and tick >= 1 else budget_text(tick) for tick in ticks]
    shares = bool((budgets < 1).all())
    return {"type": "log", "tickvals": ticks, "ticktext": text, "title_text": names[hold, shares]}


def spread_ticks(values: Array) -> list[float]:
    """The values, ascending; if they are crowded, only those far enough from the previous one to be legible."""
    if len(values) <= 1:
        return [float(value) for value in values]
    spacing = np.log2(values[-1] / values[0]) / _MAX_TICKS
    ticks = [float(values[0])]
    for value in values[1:]:
        if np.log2(value / ticks[-1]) >= spacing:
            ticks.append(float(value))
    return ticks


def about(table: pd.DataFrame, title: str | None, what: str, *more: str) -> str:
    """A title: `title`, or if it is None, `what` is drawn, of which run (from `table.attrs` and "seed"), and `more`."""
    known = dict(table.attrs)
    if "hold" in table.columns and set(table["hold"].dropna()) - {""} == {"bytes"}:
        known["hold"] = "bytes"
    if "seed" in table.columns and table["seed"].nunique() == 1:  # the rows of one seed may have been selected
        known["seed"] = table["seed"].iloc[0]
    return heading(title, [
        what,
        str(known.get("model", "")),
        f"{known['prompt_length']:,} tokens" if "prompt_length" in known else "",
        f"layer{'s' * (len(known['layers']) > 1)} {', '.join(map(str, known['layers']))}" if "layers" in known else "",
        f"budget {budget_text(known['budget'], str(known.get('hold')))}" if "budget" in known else "",
        "equal bytes" if known.get("hold") == "bytes" else "",
        f"seed {known['seed']}" if "seed" in known else "",
        *more,
    ])  # fmt: skip
