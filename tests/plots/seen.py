"""The colours in which a figure draws text and lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio

COLOR = re.compile(r"#[0-9a-fA-F]{6}|rgb\((\d+), ?(\d+), ?(\d+)\)")


def hexadecimal(color: str) -> str:
    """A colour as #rrggbb; the empty string for one with a part of transparency, as of areas and dots."""
    match = COLOR.fullmatch(color)
    if not match:
        return ""
    return color.lower() if color[0] == "#" else "#" + "".join(f"{int(part):02x}" for part in match.groups())


def text_and_lines(figure: go.Figure) -> Iterator[tuple[str, str]]:
    """What is drawn, and its colour as #rrggbb: text, axes, lines and hollow markers; not areas and not grid lines."""
    layout = pio.templates.merge_templates(figure.layout.template, go.layout.Template(layout=figure.layout)).layout
    yield "text", layout.font.color
    for note in layout.annotations:
        if note.text and note.font.color:
            yield f"note {note.text}", note.font.color
    for axis in (layout.xaxis, layout.yaxis):
        yield "axis", axis.linecolor
        yield "tick", axis.tickcolor
    for trace in figure.data:
        mode = trace.mode or "" if trace.type == "scatter" else ""
        if "lines" in mode and trace.line.width != 0 and trace.line.color:
            yield f"line {trace.name}", trace.line.color
        symbol = str(trace.marker.symbol) if "markers" in mode else ""
        if symbol.endswith("-open"):
            for color in np.atleast_1d(trace.marker.color):
                yield f"marker {trace.name}", str(color)
        if "text" in mode and trace.textfont.color:
            yield f"text {trace.name}", trace.textfont.color
