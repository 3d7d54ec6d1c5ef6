"""A figure laid out for print: 8-point type at the width of a paper's column, with every text inside the figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go

from .labels import title_pad, top_margin, wrap
from .print_names import named_for_print
from .text_width import text_width
from .theme import FONT

SERIF = "Times New Roman, Times, Liberation Serif, Nimbus Roman, DejaVu Serif, serif"

PIXELS = 96  # CSS pixels per inch
POINTS = 8
TYPE = POINTS * PIXELS / 72  # pixels
_SHRINK = 0.75  # from the 13-pixel type of a figure on a screen to 8 points on paper, which are 10.7 pixels
_LEFT, _RIGHT, _BOTTOM = 4, 6, 4  # margins in pixels; plotly adds what the labels of the axes need
_LINE = 1.35  # em, from one line of a text to the next
_TITLE_LINES, _LEGEND_ROWS = 2, 3  # the height of a figure allows for so many; with more it grows
_SIGN = 52  # pixels beside the text of a legend's entry: its sign and the gaps
_ROW_GAP = 5  # pixels between the rows of a legend
_NUMBER = "0.125"  # a tick label of usual width
_COLOR_BAR = 6.5  # em, a colour bar with its labels and title
_SHORTEST = 6.0  # em, a line of an axis title
_NEAR = 1e-6  # shares of the plot that differ by less are the same
_X_AXIS = 4.0  # em below a plot: tick labels and title


def for_print(
    fig: go.Figure,
    inches: float,
    height: float | None = None,
    title: bool = True,
    names: str | Mapping[str, str] = "registry",
    font: str | None = None,
) -> go.Figure:
    """A copy of the figure at its printed size: 8-point type, texts wrapped to fit, no layers for hovering.

    `height`: inches. By default it follows from the figure's own height, with the lines that its title, its legend and
    its panel titles take, so that the plot keeps its size. The other arguments as for `save`.
    """
    page = go.Figure(fig)
    page.data = [trace for trace in page.data if (trace.meta or {}) != {"role": "hover"}]
    named_for_print(page, names)
    if not title:
        page.layout.title.text = ""
    sheet = _Sheet(page, inches * PIXELS, font)
    text = sheet.wrapped(page.layout.title.text or "", sheet.width - _LEFT - _RIGHT - 0.4 * TYPE)
    legend = sheet.wrap_legend()
    longer = top_margin(text, TYPE) - top_margin("<br>" * (_TITLE_LINES - 1), TYPE)
    longer += max(legend - _LEGEND_ROWS * (_LINE * TYPE + _ROW_GAP), 0.0)
    printed = height * PIXELS if height else _height(page) + longer
    plot = max(printed - top_margin(text, TYPE, 1) - legend - _X_AXIS * TYPE, _X_AXIS * TYPE)
    sheet.wrap_axis_titles(page.select_yaxes(), plot)
    printed += sheet.wrap_panel_titles(plot) * (not height)
    lines = sheet.wrap_axis_titles(page.select_xaxes(), sheet.width - sum(sheet.beside()))
    printed += (lines - 1) * _LINE * TYPE * (not height)
    page.update_layout(
        width=sheet.width, height=printed, autosize=False, font={"size": TYPE, "family": sheet.family},
        title={"text": text, "font_size": TYPE, "pad": title_pad(text, TYPE), "x": 0, "xref": "container"},
        margin={"l": _LEFT, "r": _RIGHT, "t": top_margin(text, TYPE, _lines_above(page)), "b": _BOTTOM},
        # From the figure's left edge, and without plotly's scroll bar for legends of more than half its height.
        legend={"x": 0, "xref": "container", "maxheight": 1},
    )  # fmt: skip
    for update in (page.update_xaxes, page.update_yaxes):
        update(title={"font_size": TYPE, "standoff": 4})
    for trace in page.data:
        if "marker" in trace and trace.marker.showscale:
            trace.marker.colorbar.title.font.size = TYPE
    page.update_coloraxes(colorbar_title_font_size=TYPE)
    return page


class _Sheet:
    """The figure and its width in pixels; changes the figure's texts so that they fit."""

    def __init__(self, page: go.Figure, width: float, font: str | None) -> None:
        self.page, self.width = page, width
        self.family = FONT if font is None else SERIF if font == "serif" else f"{font}, {FONT}"
        # A font of the user's own is measured as the wider of both; most are narrower.
        self.kinds = (False,) if font is None else (True,) if font == "serif" else (False, True)

    def ems(self, text: str) -> float:
        """The width of a text in em."""
        return max(text_width(text, serif) for serif in self.kinds)

    def measured(self, text: str) -> float:
        """The width of a text in pixels."""
        return self.ems(text) * TYPE

    def wrapped(self, text: str, pixels: float) -> str:
        """The text in lines of at most so many pixels."""
        return wrap(text, pixels / TYPE, anywhere=True, measure=self.ems)

    def beside(self) -> tuple[float, float]:
        """Pixels on the left and on the right of the plot: labels and titles of y axes, a colour bar."""
        axes = list(self.page.select_yaxes(selector=lambda axis: axis.visible is not False))
        labels = [label for trace in self.page.data if trace.type == "bar" for label in _categories(trace.y)]
        labels += [label for axis in axes for label in _tick_labels(axis)]
        label = max(map(self.measured, labels), default=0.0)
        titles = max((axis.title.text.count("<br>") + 1 for axis in axes if axis.title.text), default=0)
        scaled = any("marker" in trace and trace.marker.showscale for trace in self.page.data)
        bars = [axis.colorbar for axis in self.page.select_coloraxes()]
        scaled = scaled or any(bar.title.text and bar.orientation != "h" for bar in bars)
        return _LEFT + label + (0.5 + _LINE * titles + 0.4 * bool(titles)) * TYPE, _RIGHT + _COLOR_BAR * TYPE * scaled

    def wrap_legend(self) -> float:
        """Wrap the names in the legend, and return its height in pixels."""
        in_legend = [trace for trace in self.page.data if "showlegend" in trace]  # not a table
        named = [trace for trace in in_legend if trace.showlegend is not False and trace.name]
        if not named or self.page.layout.showlegend is False:
            return 0.0
        for trace in named:
            trace.name = self.wrapped(trace.name, self.width - _LEFT - _RIGHT - _SIGN)
        entries = [self.measured(trace.name) + _SIGN for trace in named]
        room = self.width - sum(self.beside())  # plotly begins a new row at the width of the plot
        if sum(entries) > room and not any(trace.legendgroup for trace in named):
            entries = [max(entries)] * len(entries)  # it aligns them in columns
        rows, used = [0], 0.0
        for trace, entry in zip(named, entries, strict=True):
            if used and used + entry > room:
                rows, used = [*rows, 0], 0.0
            rows[-1] = max(rows[-1], trace.name.count("<br>") + 1)
            used += entry
        return sum(lines * _LINE * TYPE + _ROW_GAP for lines in rows)

    def wrap_panel_titles(self, height: float) -> float:
        """Wrap the titles of panels in a plot of `height` pixels, and move the panels apart for their lines.

        Returns the pixels that this takes.
        """
        left, right = self.beside()
        plot = self.width - left - right
        starts = {_domain(axis)[0] for axis in self.page.select_xaxes()}
        gained: dict[float, int] = {}  # by the upper edge of a panel: lines
        for note in _panel_titles(self.page):
            start, top = _domain(_axis_of(self.page, note.xref))[0], _domain(_axis_of(self.page, note.yref))[1]
            before = note.text.count("<br>")
            next_start = min((other for other in starts if other > start + _NEAR), default=None)
            pixels = (
                (1 - start) * plot + right - _RIGHT if next_start is None else (next_start - start) * plot - TYPE / 2
            )
            if self.measured(note.text) > pixels:
                note.text = "<br>".join(self.wrapped(line, pixels) for line in note.text.split("<br>"))
            gained[top] = max(gained.get(top, 0), note.text.count("<br>") - before)
        below = {top: _LINE * TYPE * lines for top, lines in gained.items() if top < 1 - _NEAR}
        longer = sum(below.values())
        for axis in self.page.select_yaxes():
            lifted = sum(pixels for top, pixels in below.items() if top < _domain(axis)[1] - _NEAR)
            axis.domain = [min((edge * height + lifted) / (height + longer), 1.0) for edge in _domain(axis)]
        return sum(gained.values()) * _LINE * TYPE

    def wrap_axis_titles(self, axes: Iterable[Any], plot: float) -> int:
        """Wrap the titles of axes to their lengths in a plot of so many pixels; returns the lines of the longest."""
        lines = 1
        for axis in axes:
            low, high = _domain(axis)
            if axis.title.text:
                axis.title.text = self.wrapped(axis.title.text, max((high - low) * plot, _SHORTEST * TYPE))
                lines = max(lines, axis.title.text.count("<br>") + 1)
        return lines


def _height(fig: go.Figure) -> float:
    """A figure's own height in print, in pixels."""
    return float((fig.layout.height or 420) * _SHRINK)


def _categories(values: Any) -> list[str]:
    """The values of an axis of categories; none of a numeric one."""
    return [value for value in (() if values is None else values) if isinstance(value, str)]


def _tick_labels(axis: Any) -> list[str]:
    """The tick labels of an axis as far as they are known, or labels that are as wide."""
    if axis.ticktext is not None:
        return list(axis.ticktext)
    if axis.range is not None and axis.type != "log":
        return [f"{end:,.0f}" if abs(end) >= 10 else f"{end:.2f}" for end in axis.range]
    return [_NUMBER]


def _panel_titles(fig: go.Figure) -> list[Any]:
    """The annotations above panels; others may refer to the whole plot."""
    notes = [note for note in fig.layout.annotations if note.yanchor == "bottom" and note.y == 1]
    return [note for note in notes if "domain" in str(note.xref) and "domain" in str(note.yref)]


def _axis_of(fig: go.Figure, reference: str) -> Any:
    """The axis that an annotation refers to: of "y2 domain", layout.yaxis2."""
    name = reference.removesuffix(" domain")
    return fig.layout[f"{name[0]}axis{name[1:]}"]


def _domain(axis: Any) -> tuple[float, float]:
    """The two ends of an axis, in shares of the plot."""
    low, high = axis.domain or (0.0, 1.0)
    return float(low), float(high)


def _lines_above(fig: go.Figure) -> int:
    """Lines of the titles of the uppermost panels."""
    titles = [note for note in _panel_titles(fig) if _domain(_axis_of(fig, note.yref))[1] > 1 - _NEAR]
    return max((note.text.count("<br>") + 1 for note in titles), default=0)
