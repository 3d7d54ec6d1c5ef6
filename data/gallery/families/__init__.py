"""The gallery's figures, one file a family: each a function whose last statement is the call that draws it.

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
    """One figure: its file's name, the plot that draws it, the paper's figure, what it shows, and the call in print."""

    name: str
    plot: str
    paper: str
    shows: str
    call: str
    width: Literal["column", "page"]
    draw: Draw


def title(table: pd.DataFrame, what: str) -> str:
    """A figure's title where the plot gets parts of a table, which know nothing of the run."""
    known = table.attrs
    parts = [what, known["model"], f"{known['prompt_length']:,} tokens", f"budget {known['budget']:,}"]
    return " · ".join([*parts, known["hardware"]] if "hardware" in known else parts)


ENTRIES: dict[str, Entry] = {}


def figure(paper: str, width: Literal["column", "page"] = "column") -> Callable[[Draw], Draw]:
    """A decorator that puts a function under its name into ENTRIES; its docstring says what the figure shows."""

    def add(draw: Draw) -> Draw:
        (function,) = ast.parse(textwrap.dedent(inspect.getsource(draw))).body
        assert isinstance(function, ast.FunctionDef)
        statements = function.body[1:]  # behind the docstring
        drawn = statements[-1]
        assert isinstance(drawn, ast.Return)
        assert isinstance(drawn.value, ast.Call)
        assert isinstance(drawn.value.func, ast.Attribute)
        call = "; ".join(ast.unparse(statement).removeprefix("return ") for statement in statements)
        shows = " ".join((draw.__doc__ or "").split())
        ENTRIES[draw.__name__] = Entry(draw.__name__, drawn.value.func.attr, paper, shows, call, width, draw)
        return draw

    return add
