"""Axes of sizes and times, and checks of the tables that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError
from .score_curves import about, numbers, rows_of, spread_ticks

if TYPE_CHECKING:
    import pandas as pd

_LETTERS = 32  # of all tick labels of an axis together, in a printed column
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def amounts(operation: str, table: pd.DataFrame, keys: list[str], value: str) -> pd.DataFrame:
    """The columns `keys` and `value` of the rows without missing values; `value` as numbers >= 0.

    Raises InvalidInputError for a missing column, no rows, or a `value` that is negative or not a number.
    """
    rows = numbers(operation, rows_of(operation, table, [*keys, value]), value)
    if (rows[value] < 0).any():
        raise InvalidInputError(f"{operation}: {value}", rows[value].min(), "numbers >= 0")
    return rows


def several(table: pd.DataFrame, name: str) -> bool:
    """Whether the table has a column `name` with more than one value."""
    return name in table.columns and table[name].nunique() > 1


def one_value(operation: str, table: pd.DataFrame, *names: str) -> None:
    """Raise InvalidInputError if one of these columns, for which the figure has no axis, has several values."""
    for name in names:
        if several(table, name):
            got = ", ".join(str(value) for value in sorted(table[name].dropna().unique()))
            raise InvalidInputError(f"{operation}: {name}", got, "one of them: select its rows first")


def unit_of(most_s: float) -> tuple[float, str]:
    """The length in seconds and the symbol of the largest time unit that is at most `most_s` seconds.

    >>> unit_of(0.25)
    (0.001, 'ms')
    """
    return next(((size, symbol) for size, symbol in _UNITS if most_s >= size), _UNITS[-1])


def size_axis(figure: go.Figure, values: Any, text: str, **place: int) -> None:
    """Make an x axis logarithmic, with ticks at the values; `place` is a subplot's row and col.

    If the labels do not fit next to each other in a paper's column, every second one is left out, but never the last.
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
    """A title from `about`, with the machine: `hardware`, or the one in `table.attrs`."""
    return about(table, title, what, hardware or str(table.attrs.get("hardware", "")))
