"""Iterations of clustering that a layer's computation hides: measured times, fits, and the iterations chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .axes import log_ticks, size_axis, unit_of
from .labels import escape, heading, set_title
from .panels import name_panel, stack
from .score_curves import curve
from .theme import cluster_line, ink, legend_entry, template_name, translucent

if TYPE_CHECKING:
    import pandas as pd

Lengths = NDArray[np.int64]

_POINTS = 60
_DASHES, _SYMBOLS = ("solid", "dash", "dot", "longdash"), ("circle", "square", "diamond", "triangle-up")


class Fit(Protocol):
    """Fits of clustering and of one layer's computation: a `kvviz.clustering.IterationModel`."""

    @property
    def least(self) -> int:
        """The fewest iterations."""

    @property
    def most(self) -> int:
        """The most iterations."""

    def clustering_seconds(self, tokens: int, iterations: int) -> float:
        """Fitted seconds of clustering."""

    def compute_seconds(self, tokens: int) -> float:
        """Fitted seconds of one layer's computation."""

    def max_iterations(self, tokens: int) -> int:
        """The iterations chosen for a length."""

    def table(self) -> pd.DataFrame:
        """Measurements and fits."""


def iteration_fit(
    fits: Fit | Mapping[str, Fit],
    lengths: Sequence[int] | None = None,
    *,
    hardware: str | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Above, seconds of one layer's computation and of clustering by length; below, the iterations chosen.

    As in PQCache (arXiv 2407.12820), equations 1 to 3, which have no figure there. Marks are measured, lines are
    fitted; clustering has one thin line per measured number of iterations T. Below, the dotted line is T_max, at which
    both take equally long, and the thick line is T_max clipped to the band between `least` and `most`.

    `fits`: an IterationModel, or {label: IterationModel} to compare machines; clustering is drawn once if all share its
    measurements. `lengths`: the tokens from which and to which the lines are drawn, by default those measured.
    `hardware` names the machine.

    Raises InvalidInputError for no model, and without `lengths` for models without measurements.

    >>> from kvviz.clustering import IterationModel
    >>> model = IterationModel(alpha1=0, beta1=1e-6, alpha2=0.1, beta2=0, gamma2=0)
    >>> iteration_fit(model, [1024, 4096]).data[-1].y[[0, -1]].tolist()
    [97.0, 24.0]
    """
    models = dict(fits) if isinstance(fits, Mapping) else {"": fits}
    if not models:
        raise InvalidInputError("iteration_fit", "no model", "at least one")
    tables = {label: model.table() for label, model in models.items()}
    measured = sorted({int(tokens) for table in tables.values() for tokens in table["tokens"]})
    ends = sorted(lengths) if lengths is not None else measured
    if not ends or ends[0] < 1:
        raise InvalidInputError("iteration_fit: lengths", ends, "lengths above 0, or models with measurements")
    x = np.unique(np.geomspace(ends[0], ends[-1], _POINTS).round().astype(np.int64))
    figure, inside = stack([230, 200], 96)
    figure.update_layout(template=template_name(dark), height=inside + 190, hovermode="closest")
    longest_s = max(model.compute_seconds(int(x[-1])) for model in models.values())
    scale, unit = unit_of(longest_s)
    drawn: list[list[tuple[int, int, float]]] = []
    for number, (label, model) in enumerate(models.items()):
        look = {
            "color": cluster_line(3 * number, dark),
            "dash": _DASHES[number % 4],
            "symbol": _SYMBOLS[number % 4],
        }
        name = escape(label) or "one layer's computation"
        figure.add_traces(_compute(name, model, tables[label], x, (scale, unit), look), rows=1, cols=1)
        points = _clusterings(tables[label])
        if points and points not in drawn:
            figure.add_traces(_clustering(model, points, x, (scale, unit), not drawn, dark), rows=1, cols=1)
            drawn.append(points)
    for number, (label, model) in enumerate(models.items()):
        look = {"color": cluster_line(3 * number, dark), "dash": _DASHES[number % 4], "symbol": "circle"}
        name = escape(label) or "one layer's computation"
        figure.add_traces(_chosen(name, model, x, look, number == 0, dark), rows=2, cols=1)
    size_axis(figure, ends if lengths is not None else measured, "length (tokens)")
    figure.update_xaxes(range=[np.log10(x[0]) - 0.03, np.log10(x[-1]) + 0.03])
    log_ticks(figure, f"time ({unit})", row=1, col=1)
    log_ticks(figure, "iterations T", row=2, col=1)
    clips = sorted({(model.least, model.most) for model in models.values()})
    name_panel(figure, "thick: one layer's computation", 1, 1)
    name_panel(figure, f"T chosen, within {' and '.join(f'{least:,} to {most:,}' for least, most in clips)}", 2, 1)
    what = ["Iterations of clustering that one layer hides", hardware or ""]
    set_title(figure, heading(title, what), panel_titles=True)
    return figure


def _clusterings(table: pd.DataFrame) -> list[tuple[int, int, float]]:
    """Measured tokens, iterations and seconds of clustering."""
    rows = table[table["work"] == "clustering"]
    return [
        (int(a), int(b), float(c)) for a, b, c in zip(rows["tokens"], rows["iterations"], rows["seconds"], strict=True)
    ]


def _compute(
    name: str, model: Fit, table: pd.DataFrame, x: Lengths, unit: tuple[float, str], look: dict[str, str]
) -> list[go.Scatter]:
    """The fitted time of one layer's computation, and marks at the measured ones."""
    scale, symbol = unit
    hover = f"%{{x:,}} tokens: %{{y:.3g}} {symbol}"
    fitted = np.array([model.compute_seconds(int(tokens)) for tokens in x]) / scale
    lines = [curve(name, x, fitted, look, f"fitted, {hover}", markers=False)]
    rows = table[table["work"] == "one layer"]
    if len(rows):
        tokens, seconds = rows["tokens"].to_numpy(float), rows["seconds"].to_numpy(float) / scale
        lines.append(curve(name, tokens, seconds, look, f"measured, {hover}", lines=False, show_legend=False))
    return lines


def _clustering(
    model: Fit, points: list[tuple[int, int, float]], x: Lengths, unit: tuple[float, str], explained: bool, dark: bool
) -> list[go.Scatter]:
    """One thin line per measured number of iterations, and the measured marks."""
    scale, symbol = unit
    style = {"color": ink(dark).muted, "dash": "solid", "symbol": "circle-open"}
    counts = sorted({iterations for _, iterations, _ in points})
    name = f"clustering, T = {', '.join(map(str, counts))} from below"
    hover = f"%{{x:,}} tokens: %{{y:.3g}} {symbol}"
    lines = []
    for count in counts:
        fitted = np.array([model.clustering_seconds(int(tokens), count) for tokens in x]) / scale
        line = curve(name, x, fitted, style, f"T = {count}, fitted, {hover}", markers=False, show_legend=False)
        measured = [(tokens, seconds / scale) for tokens, iterations, seconds in points if iterations == count]
        at, times = (np.array(values, float) for values in zip(*measured, strict=True))
        marks = curve(name, at, times, style, f"T = {count}, measured, {hover}", lines=False, show_legend=False)
        lines += [line.update(line_width=1), marks]
    if explained:
        marker = {"color": style["color"], "symbol": style["symbol"]}
        lines.append(legend_entry("lines+markers", name, line={"color": style["color"], "width": 1}, marker=marker))
    return lines


def _chosen(name: str, model: Fit, x: Lengths, look: dict[str, str], explained: bool, dark: bool) -> list[go.Scatter]:
    """The band of the clip, T_max as fitted where it is above 0, and the iterations chosen."""
    ends = x[[0, -1]].astype(float)
    band = go.Scatter(
        x=[*ends, *ends[::-1]], y=[model.least, model.least, model.most, model.most], mode="lines", fill="toself",
        line_width=0, fillcolor=translucent(ink(dark).muted, 0.15), hoverinfo="skip", name="clip",
        showlegend=explained,
    )  # fmt: skip
    free = np.array([_unclipped(model, int(tokens)) for tokens in x])
    counts = np.array([float(model.max_iterations(int(tokens))) for tokens in x])
    above = free > 0
    hover = "%{x:,} tokens: T_max %{y:.3g}"
    limit = curve(name, x[above], free[above], {**look, "dash": "dot"}, hover, markers=False, show_legend=False)
    chosen = curve(name, x, counts, look, "%{x:,} tokens: T = %{y:,}", markers=False, show_legend=False)
    lines = [band, limit.update(line_width=1.2), chosen.update(line_width=3)]
    if explained:
        style = {"color": ink(dark).foreground, "width": 1.2, "dash": "dot"}
        lines.insert(1, legend_entry("lines", "T_max before the clip", line=style))
    return lines


def _unclipped(model: Fit, tokens: int) -> float:
    """T_max of equation 3, at which the fitted clustering takes as long as the layer."""
    fixed = model.clustering_seconds(tokens, 0)
    return (model.compute_seconds(tokens) - fixed) / (model.clustering_seconds(tokens, 1) - fixed)
