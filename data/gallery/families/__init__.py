"""The gallery's figures, one file per family: each is a function whose last statement is the call that draws it.

Every plot of kvviz has one.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from notebooks.runs import Runs

Draw = Callable[[Runs], go.Figure]


@dataclass(frozen=True)
class Entry:
    """One figure: the name of its file, the plot, the paper's figure, what it shows, and the code of the call."""

    name: str
    plot: str
    paper: str
    shows: str
    call: str
    width: Literal["column", "page"]
    draw: Draw


def title(table: pd.DataFrame, what: str) -> str:
    """The title of a figure whose plot gets only parts of a table, without its `attrs`."""
    attrs = table.attrs
    parts = [what, attrs["model"], f"{attrs['prompt_length']:,} tokens", f"budget {attrs['budget']:,}"]
    return " · ".join([*parts, attrs["hardware"]] if "hardware" in attrs else parts)


ENTRIES: dict[str, Entry] = {}


def figure(paper: str, width: Literal["column", "page"] = "column") -> Callable[[Draw], Draw]:
    """A decorator that adds a function to ENTRIES under its name; the docstring says what the figure shows."""

    def add(draw: Draw) -> Draw:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(draw))).body
        assert isinstance(function, ast.FunctionDef)
        statements = function.body[1:]  # without the docstring
        last = statements[-1]
        assert isinstance(last, ast.Return)
        assert isinstance(last.value, ast.Call)
        assert isinstance(last.value.func, ast.Attribute)
        call = "; ".join(ast.unparse(statement).removeprefix("return ") for statement in statements)
        shows = " ".join((draw.__doc__ or "").split())
        ENTRIES[draw.__name__] = Entry(draw.__name__, last.value.func.attr, paper, shows, call, width, draw)
        return draw

    return add
