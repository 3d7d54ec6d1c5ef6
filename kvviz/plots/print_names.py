"""Names of methods in print: "ClusterKV" where a figure on a screen says `clusterkv`, the name to type."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError, UnknownNameError
from ..trace.styles import known_titles
from .labels import escape

KINDS = ("registry", "paper")
# A name stands at the beginning of a text, a line or a part of a title, and ends there or before more about the method.
_BEFORE = r"(?:^|(?<= · )|(?<=<br>)|(?<=, )|(?<=&gt; ))"
_AFTER = r"(?=$| ·|<br>|,|:| \()"


def named_for_print(page: go.Figure, names: str | Mapping[str, str]) -> None:
    """Replace the registry names of methods in all texts of a figure.

    `names`: "registry" changes nothing. "paper" takes each method's title: as its recording stores it, as its class
    declares it, or that of kvviz's own method of this name. A mapping {registry name: title} goes before these.

    Raises UnknownNameError for another word, and InvalidInputError for a mapping of something else than texts.
    """
    if isinstance(names, str) and names not in KINDS:
        raise UnknownNameError("plots.save: names", names, KINDS)
    if names == "registry":
        return
    own = {} if isinstance(names, str) else dict(names)
    if not all(isinstance(text, str) and text for pair in own.items() for text in pair):
        raise InvalidInputError("plots.save: names", repr(own), "texts by texts: {registry name: title}")
    recorded = (page.layout.meta or {}).get("titles", {})
    titles = {escape(name): escape(title) for name, title in {**known_titles(), **recorded, **own}.items()}
    longest_first = sorted(titles, key=len, reverse=True)
    pattern = re.compile(f"{_BEFORE}({'|'.join(map(re.escape, longest_first))}){_AFTER}")
    _replace(page, lambda text: pattern.sub(lambda match: titles[match[1]], text))


def _replace(page: go.Figure, renamed: Callable[[str], str]) -> None:
    page.layout.title.text = renamed(page.layout.title.text or "")
    for note in page.layout.annotations:
        note.text = renamed(note.text or "")
    for axis in [*page.select_xaxes(), *page.select_yaxes()]:
        for values in ("ticktext", "categoryarray"):
            if axis[values] is not None:
                axis[values] = [_renamed(value, renamed) for value in axis[values]]
    for trace in page.data:
        if trace.name:
            trace.name = renamed(trace.name)
        for values in ("x", "y"):  # categories
            if values in trace and trace[values] is not None and np.asarray(trace[values]).dtype.kind in "OU":
                trace[values] = [_renamed(value, renamed) for value in trace[values]]


def _renamed(value: Any, renamed: Callable[[str], str]) -> Any:
    return renamed(value) if isinstance(value, str) else value
