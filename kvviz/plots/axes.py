"""Axes of sizes and of times, and what tables of them must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError
from .score_curves import about, numbers, rows_of, spread_ticks

if TYPE_CHECKING:
    import pandas as pd

_LETTERS = 32  # of all tick labels of an axis, at the width of a column in print
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def amounts(operation: str, table: pd.DataFrame, keys: list[str], value: str) -> pd.DataFrame:
    """The columns `keys` and `value` of the rows that have them all, `value` as numbers of at least 0.

    Raises InvalidInputError where a column is missing, no row is left or a number cannot be.
    """
    rows = numbers(operation, rows_of(operation, table, [*keys, value]), value)
    if (rows[value] < 0).any():
        raise InvalidInputError(f"{operation}: {value}", rows[value].min(), "numbers >= 0")
    return rows


def several(table: pd.DataFrame, name: str) -> bool:
    """Whether a table has more than one value in the column of that name."""
    return name in table.columns and table[name].nunique() > 1


def one_value(operation: str, table: pd.DataFrame, *names: str) -> None:
    """Raise InvalidInputError where a column that the figure has no axis for has several values."""
    for name in names:
        if several(table, name):
            got = ", ".join(str(value) for value in sorted(table[name].dropna().unique()))
            raise InvalidInputError(f"{operation}: {name}", got, "one of them: pick its rows first")


def unit_of(most_s: float) -> tuple[float, str]:
    """The unit in which that many seconds are at least 1, in seconds, and its sign.

    >>> unit_of(0.25)
    (0.001, 'ms')
    """
    return next(((size, sign) for size, sign in _UNITS if most_s >= size), _UNITS[-1])


def size_axis(figure: go.Figure, values: Any, text: str, **place: int) -> None:
    """Make an x axis logarithmic, with ticks at the values themselves; `place` is a subplot's row and col.

    Where the labels would not fit beside each other in a paper's column, every second one is left out, never the last.
    """
    ticks = spread_ticks(np.unique(np.asarray(values, float)))
    while sum(len(f"{tick:,.0f}") for tick in ticks) > _LETTERS:
        ticks = ticks[::-2][::-1]
    figure.update_xaxes(
        type="log", title_text=text, tickvals=ticks, ticktext=[f"{tick:,.0f}" for tick in ticks], **place
    )


def log_ticks(figure: go.Figure, text: str, **place: int) -> None:
    """Make a y axis logarithmic, with ticks at the powers of ten."""
    figure.update_yaxes(type="log", title_text=text, dtick=1, tickformat="~g", **place)


def run_title(table: pd.DataFrame, title: str | None, what: str, hardware: str | None) -> str:
    """A title as `about` makes it, with the machine (given, or in `table.attrs`)."""
    return about(table, title, what, hardware or str(table.attrs.get("hardware", "")))
