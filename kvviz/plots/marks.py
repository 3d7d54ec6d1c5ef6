"""How cells are drawn: four marks of agreement, attention in cividis, or clusters by hue; hover text and legend."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.colors import sample_colorscale

from ..metrics import Verdict
from ..trace import Recording
from ..trace.hues import UNCHOSEN, hue
from .cells import AGREED, BLANK, KEPT, MISSED, WASTED, Cells, middles, rectangles, slashes
from .labels import escape
from .theme import MAP, attention_scale, color_bar_entry, hue_color, ink, legend_entry, recorded_style

DECADES = 4  # attention weights from 1e-4 to 1, on a logarithmic scale
_NAMES = {
    AGREED: "agreed with the oracle", MISSED: "missed: only the oracle", WASTED: "wasted: only the method",
    KEPT: "sink, recent or generated: always attended",
}  # fmt: skip
_DOT = 2.5  # pixels, smaller than a cell
_CLEAR = "rgba(0,0,0,0)"
_TONES, _LEVELS = 4, 12  # of lightness per cluster's hue, of the attention map


def level(weight: NDArray[Any]) -> NDArray[np.float64]:
    """0 at a weight of 1e-4 and below, 1 at a weight of 1, linear in the logarithm."""
    return np.asarray(1 + np.log10(np.clip(weight, 10.0**-DECADES, 1.0)) / DECADES, np.float64)


def paint(grid: Cells, run: Recording, color: str, dark: bool) -> list[go.Scatter]:
    """The marks of one recording, one path per colour: vector graphics, in print too."""
    missed = _lines(*rectangles(grid.mark == MISSED, grid, closed=True), _outline(color, dark))
    if color != "agreement":
        return [*(_area(grid, mask, shade) for shade, mask in _shades(grid, color, dark)), missed]
    tone = recorded_style(run, dark)["color"]
    wasted = _lines(*slashes(grid.mark == WASTED, grid), {"width": 1, "color": tone})
    x, y = middles(grid.mark == KEPT, grid)
    dots = {"size": _DOT, "color": tone, "line": {"width": 0}}
    kept = go.Scatter(x=x, y=y, mode="markers", marker=dots, hoverinfo="skip", showlegend=False)
    return [_area(grid, grid.mark == AGREED, tone), wasted, missed, kept]


def _area(grid: Cells, mask: NDArray[np.bool_], color: str) -> go.Scatter:
    return _lines(*rectangles(mask, grid, closed=False), {"width": 0}).update(fill="toself", fillcolor=color)


def _lines(x: NDArray[Any], y: NDArray[Any], line: dict[str, Any]) -> go.Scatter:
    return go.Scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _outline(color: str, dark: bool) -> dict[str, Any]:
    """The outline of missed tokens: prominent in a map of agreement, faint in other maps."""
    agreement, neutral = color == "agreement", ink(dark)
    return {"width": 0.8 if agreement else 0.5, "color": neutral.foreground if agreement else neutral.muted}


def _shades(grid: Cells, color: str, dark: bool) -> list[tuple[str, NDArray[np.bool_]]]:
    """Fill colours, each with the mask of the attended cells that it fills."""
    attended = np.isin(grid.mark, (AGREED, WASTED, KEPT))
    if color == "attention":
        step = np.rint(level(grid.weight) * (_LEVELS - 1)).astype(int)
        fills = sample_colorscale(MAP, np.linspace(0, 1, _LEVELS))
        return [(fills[index], attended & (step == index)) for index in np.unique(step[attended])]
    tone = np.rint(level(grid.weight) * (_TONES - 1)).astype(int)
    shade = hue(grid.group)  # groups that share a hue share a path
    shades = []
    for step, strength in sorted(set(zip(shade[attended].tolist(), tone[attended].tolist(), strict=True))):
        fill = ink(dark).muted if step == UNCHOSEN else hue_color(step, strength / (_TONES - 1), dark)
        shades.append((fill, attended & (shade == step) & (tone == strength)))
    return shades


def hover(grid: Cells, run: Recording) -> go.Heatmap:
    """An invisible layer with the hover text; `plots.save` leaves it out of print."""
    marked = grid.mark != BLANK
    facts, pooled = [grid.position[..., None]], ""
    if grid.width > 1:
        facts.append(grid.counts)
        pooled = f"<br>{grid.width} tokens: %{{customdata[1]}} agreed, %{{customdata[2]}} missed, "
        pooled += "%{customdata[3]} wasted, %{customdata[4]} always attended"
    cells = zip(grid.position.tolist(), grid.mark.tolist(), grid.group.tolist(), strict=True)
    text = [[_words(run, *cell) for cell in zip(*line, strict=True)] for line in cells]
    numbers = np.concatenate(facts, -1)
    small = np.int16 if numbers.max(initial=0) < 2**15 else np.int32
    return go.Heatmap(
        x=grid.centers, y=grid.first_step + np.arange(len(grid.mark)),
        z=np.where(marked, grid.weight, np.nan).astype(np.float32),
        text=text, customdata=numbers.astype(small), hoverongaps=False, showscale=False, meta={"role": "hover"},
        colorscale=[[0, _CLEAR], [1, _CLEAR]],
        hovertemplate="step %{y} · position %{customdata[0]} %{text}<br>attention %{z:.2g}"
        f"{pooled}<extra></extra>",
    )  # fmt: skip


def _words(run: Recording, position: int, mark: int, group: int) -> str:
    if mark == BLANK:
        return ""
    verdict = f"“{escape(run.tokens[position])}”: {Verdict(mark).name.lower()}"
    return f"{verdict}, in group {group}" if group >= 0 else verdict


def legend(grids: list[Cells], runs: list[Recording], color: str, prompt_end: bool, dark: bool) -> list[go.Scatter]:
    """Traces without data, as the legend of what `paint` drew."""
    neutral = ink(dark)
    tone = recorded_style(runs[0], dark)["color"] if len({run.method for run in runs}) == 1 else neutral.muted
    drawn = {mark for grid in grids for mark in np.unique(grid.mark).tolist()}
    symbols = {
        AGREED: {"symbol": "square", "color": tone},
        MISSED: {"symbol": "square-open", "color": _outline(color, dark)["color"], "line": {"width": 1}},
        WASTED: {"symbol": "line-ne-open", "color": tone, "line": {"width": 1.5}},
        KEPT: {"symbol": "circle", "color": tone, "size": 2 * _DOT},
    }
    explained = symbols if color == "agreement" else [MISSED]
    entries = [_entry(_NAMES[mark], symbols[mark]) for mark in explained if mark in drawn]
    if color == "group":
        entries.append(_entry("attended, in no group", {"symbol": "square", "color": neutral.muted}))
    if color == "attention":
        entries.append(color_bar_entry(attention_scale(DECADES)))
    if prompt_end:
        line = {"width": 1, "dash": "dot", "color": neutral.foreground}
        entries.append(legend_entry("lines", "end of the prompt", line=line))
    return entries


def _entry(name: str, marker: dict[str, Any]) -> go.Scatter:
    return legend_entry("markers", name, marker={"size": 10, **marker}, hoverinfo="skip")
