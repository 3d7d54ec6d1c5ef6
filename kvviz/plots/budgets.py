"""Budgets by layer and head: how many tokens each of them attends to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInputError
from ..trace import Recording
from .labels import escape, heading, set_title
from .labels import title as join
from .panels import name_panel, stack, tiles
from .score_curves import curve
from .theme import MAP, color_bar, method_style, recorded_style, template_name

Budgets: TypeAlias = "Recording | NDArray[Any]"

_CURVES, _ROW, _GAP, _BELOW = 150, 26, 40, 96  # pixels: curves, row of a head, gap of panels, axis and legend


def layer_budgets(
    source: Budgets | Sequence[Recording] | Mapping[str, Budgets],
    *,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Tokens attended to by each layer and KV head: one map of layer × head per method, and their means per layer.

    Shows the shape of PyramidKV (arXiv 2406.02069) fig. 1 next to methods with the same budget in every layer.
    `source`: a Recording, several of them, an array [layers, heads] of tokens, or {label: Recording or array}. A
    recording is shown by its mean over the steps, including merged and generated tokens. Layers that were not recorded
    or attend to all tokens stay empty, as does NaN in an array. All maps share one colour scale.

    Raises InvalidInputError for no source, an array that is not [layers, heads] of tokens >= 0, or a recording without
    steps or layers.

    >>> figure = layer_budgets({"pyramidkv": np.array([[30.0, 30.0], [20.0, 20.0], [10.0, 10.0]])})
    >>> figure.data[0].y.tolist(), figure.data[1].marker.color.tolist()
    ([30.0, 20.0, 10.0], [30.0, 20.0, 10.0, 30.0, 20.0, 10.0])
    """
    named = _labelled(source)
    grids = {label: _attended(label, item) for label, item in named.items()}
    layers = max(len(grid) for grid in grids.values())
    heights = [_CURVES, *(min(_ROW * max(grid.shape[1], 2), _CURVES) for grid in grids.values())]
    figure, inside = stack(heights, _GAP, shared_xaxes=True)
    for row, (label, grid) in enumerate(grids.items(), start=2):
        item = named[label]
        style = recorded_style(item, dark) if isinstance(item, Recording) else method_style(label, dark)
        means = np.array([float(np.nanmean(line)) if np.isfinite(line).any() else math.nan for line in grid])
        line = curve(escape(label), np.arange(len(grid)), means, style, "layer %{x}: %{y:.1f} tokens")
        figure.add_trace(line.update(marker_size=5), 1, 1)
        tokens = "layer %{x}, head %{customdata[0]}: %{marker.color:.1f} tokens"
        figure.add_trace(tiles(grid.T, tokens, dark), row, 1)
        name_panel(figure, _panel_name(label, item, grid), row, 1)
        heads = {"title_text": "head", "dtick": 1, "range": [grid.shape[1] - 0.5, -0.5]}
        figure.update_yaxes(**heads, showgrid=False, row=row, col=1)
    figure.update_yaxes(title_text="tokens", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(range=[-0.6, layers - 0.4], showgrid=False)
    figure.update_xaxes(title_text="layer", row=len(heights), col=1)
    below = 1 - (heights[0] + _GAP) / inside
    figure.update_layout(template=template_name(dark), hovermode="closest", barmode="overlay", coloraxis={
        "colorscale": MAP, "cmin": 0, "cmax": max(float(np.nanmax(grid, initial=1)) for grid in grids.values()),
        "colorbar": color_bar("attended tokens", len=max(below, 0.3), y=0, yanchor="bottom"),
    })  # fmt: skip
    steps = {item.steps for item in named.values() if isinstance(item, Recording)}
    mean = f"mean of {steps.pop()} steps" if len(steps) == 1 else ""
    set_title(figure, runs_title(title, "Attended tokens by layer and head", list(named.values()), mean))
    figure.update_layout(height=figure.layout.margin.t + inside + _BELOW)
    return figure


def _labelled(source: Budgets | Sequence[Recording] | Mapping[str, Budgets]) -> dict[str, Budgets]:
    if isinstance(source, Recording):
        return {source.method: source}
    if isinstance(source, np.ndarray):
        return {"tokens": source}
    named = dict(source) if isinstance(source, Mapping) else {}
    for run in source if not isinstance(source, Mapping) else ():
        label = run.method if run.method not in named else f"{run.method}, budget {run.budget_text}"
        if label in named:
            wanted = "{label: recording}, to tell them apart"
            raise InvalidInputError("layer_budgets", f"two recordings of {label}", wanted)
        named[label] = run
    if not named:
        raise InvalidInputError("layer_budgets", "nothing", "a recording or an array [layers, heads]")
    return {str(label): item for label, item in named.items()}


def _attended(label: str, item: Budgets) -> NDArray[np.float64]:
    """Attended tokens [layers, heads], NaN if unknown."""
    if not isinstance(item, Recording):
        grid = np.asarray(item, np.float64)
        if grid.ndim != 2 or not grid.size or not (np.isnan(grid) | ((grid >= 0) & np.isfinite(grid))).all():
            raise InvalidInputError(f"layer_budgets: {label}", list(grid.shape), "[layers, heads] of tokens, 0 or more")
        return grid
    if not item.steps or not item.layers:
        got = f"{item.steps} steps of {len(item.layers)} layers"
        raise InvalidInputError(f"layer_budgets: {label}", got, "at least one step and one layer")
    grid = np.full((item.geometry.n_layers, item.geometry.n_kv_heads), np.nan)
    for layer in item.layers:
        grid[layer] = np.mean([item.attended_tokens(step, layer) for step in range(item.steps)], axis=0)
    return grid


def _panel_name(label: str, item: Budgets, grid: NDArray[np.float64]) -> str:
    dense = [*item.dense_layers, *item.exact_layers] if isinstance(item, Recording) else []
    dense_note = f"all tokens in layers {', '.join(map(str, dense))}" if dense else ""
    return join([label, f"mean {np.nanmean(grid):,.0f}" if np.isfinite(grid).any() else "", dense_note])


def runs_title(title: str | None, what: str, items: Sequence[Budgets], *more: str) -> str:
    """`title`, or if it is None: `what` is drawn, what all recordings among `items` share, and `more`."""
    runs = [item for item in items if isinstance(item, Recording)]
    models, lengths = {run.model for run in runs}, {run.prompt_length for run in runs}
    budgets = {run.budget_text for run in runs}
    return heading(title, [
        what, ", ".join(sorted(models)),
        f"{lengths.pop():,} tokens" if len(lengths) == 1 else "",
        f"budget {budgets.pop()}" if len(budgets) == 1 else "",
        *more,
    ])  # fmt: skip
