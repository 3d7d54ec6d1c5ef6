"""Panels of equal size in a grid, each with its name above it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from ..errors import InvalidInputError
from .theme import ink, template_name
from .themed_figure import Figure

_BETWEEN = 64  # pixels from a panel to the one below: tick labels and the lower panel's name
_AROUND = 120  # pixels for the title, the lowest axis and the legend
_SIDE = 0.1  # share of the width from a panel to the next: tick labels
ABOVE = {
    "showarrow": False, "borderpad": 0, "x": 0, "y": 1, "xref": "x domain", "yref": "y domain", "xanchor": "left",
    "yanchor": "bottom",
}  # an annotation above a panel, at its left edge  # fmt: skip


def panels(
    names: Sequence[str], across: int, height: float, dark: bool, between: float = _BETWEEN, side: float = _SIDE
) -> tuple[go.Figure, list[dict[str, int]]]:
    """A figure with one panel of `height` pixels per name, `across` in a row, and the row and col of each panel.

    `between`: pixels from a panel to the one below; `side`: share of the width from a panel to the next. Names are
    escaped text; a panel may have an empty name. Raises InvalidInputError for `across` below 1.
    """
    if across < 1:
        raise InvalidInputError("panels: across", across, "1 or more panels per row")
    across = min(across, len(names))
    rows = -(-len(names) // across)
    inside = height * rows + between * (rows - 1)
    figure = make_subplots(
        rows, across, figure=Figure(), horizontal_spacing=side if across > 1 else 0,
        vertical_spacing=between / inside if rows > 1 else 0,
    )  # fmt: skip
    figure.update_layout(template=template_name(dark), height=inside + _AROUND, hovermode="closest")
    cells = [{"row": number // across + 1, "col": number % across + 1} for number in range(rows * across)]
    places, empty_places = cells[: len(names)], cells[len(names) :]  # the last cells of the grid may be empty
    for name, place in zip(names, places, strict=True):
        if name:
            name_panel(figure, name, **place)
    for place in empty_places:
        figure.update_xaxes(visible=False, **place)
        figure.update_yaxes(visible=False, **place)
    return figure, places


def stack(heights: Sequence[float], gap: float, *, shared_xaxes: bool = False) -> tuple[go.Figure, float]:
    """A figure of panels below each other, with these heights and gaps in pixels, and their height together."""
    inside = sum(heights) + gap * (len(heights) - 1)
    figure = make_subplots(
        len(heights),
        1,
        figure=Figure(),
        shared_xaxes=shared_xaxes,
        vertical_spacing=gap / inside,
        row_heights=list(heights),
    )
    return figure, inside


def name_panel(figure: go.Figure, text: str, row: int, col: int) -> None:
    """Write escaped `text` above a panel, at its left edge."""
    figure.add_annotation(**ABOVE, text=text, align="left", yshift=3, row=row, col=col)


def tiles(values: NDArray[np.float64], hover: str, dark: bool, text: list[list[str]] | None = None) -> go.Bar:
    """A map of `values` [rows, columns] on the figure's colour axis: one bar per cell, none for NaN.

    It consists of bars because plotly puts a heat map into a PDF as a bitmap. `hover`: a template that may use x (the
    column), customdata[0] (the row), marker.color and text. `text`: what to write into the cells.
    """
    row, column = np.nonzero(~np.isnan(values))
    words = [text[line][place] for line, place in zip(row, column, strict=True)] if text is not None else None
    return go.Bar(
        x=column, y=np.ones(len(row)), base=row - 0.5, width=1, customdata=row[:, None], showlegend=False,
        marker={"color": values[row, column], "coloraxis": "coloraxis",
                "line": {"width": 0.6, "color": ink(dark).background}},
        text=words, textposition="inside" if words else "none", insidetextanchor="middle", textangle=0,
        constraintext="none", cliponaxis=False, hovertemplate=f"{hover}<extra></extra>",
    )  # fmt: skip
