"""Similarity of keys and of queries along the sequence, by layer and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from .. import metrics
from ..errors import InvalidInputError
from ..trace import Trace
from .labels import heading, set_title
from .panels import ABOVE
from .theme import MAP, color_bar, ink, legend_entry, ordered_tones, template_name, translucent
from .themed_figure import Figure

Array = NDArray[Any]
Source = Trace | Mapping[int, Array]
_MAX_PANELS = 48
_MARKED = (1, 64, 1024)  # distances whose cosine is written out
_CLAIM = 0.8  # CTkvr: "within 1K, the cosine similarity consistently exceeds 0.8 in most datasets"


def key_similarity(
    source: Source,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    size: int = 128,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Maps of the cosine between the keys of every two positions: one row per layer, one column per key/value head.

    As in CentroidKV fig. 2. `source`: a Trace, or {layer: keys [H, L, D]}. `layers` and `heads`: which to show, by
    default all, or four evenly spaced ones if there are more. More than `size` (1 to 256) positions are pooled into the
    mean cosine of blocks of tokens, and the title says so. All maps share one scale. It begins at the lowest 1% of all
    values, so that a few outliers (the first token's keys) do not flatten the rest, and its label says so.

    Raises InvalidInputError for a missing layer or head, more than 48 maps, a size out of range, and values that are
    not finite.

    >>> figure = key_similarity({0: np.eye(4)[None]})
    >>> figure.data[0].z.tolist()[0]
    [1.0, 0.0, 0.0, 0.0]
    """
    if not 1 <= size <= 256:
        raise InvalidInputError("key_similarity: size", size, "1 to 256")
    keys, shown, length = _chosen("key_similarity", source, "keys", layers, heads, most_layers=4, most_heads=4)
    if len(keys) * len(shown) > _MAX_PANELS:
        raise InvalidInputError("key_similarity", f"{len(keys)} layers × {len(shown)} heads", f"≤ {_MAX_PANELS} maps")
    maps = {layer: metrics.similarity_map(array[shown], size) for layer, array in keys.items()}
    lowest = min(float(np.floor(10 * np.quantile(np.stack(list(maps.values())), 0.01)) / 10), 0.9)
    figure = make_subplots(
        len(maps),
        len(shown),
        figure=Figure(),
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=0.03,
    )
    count = min(size, length)
    # Evenly spaced, though blocks may differ by a token: plotly draws uneven cells at the screen's resolution.
    centers = (np.arange(count) + 0.5) * length / count - 0.5
    for row, (layer, grids) in enumerate(maps.items(), start=1):
        for column, grid in enumerate(grids, start=1):
            panel = f"layer {layer}, KV head {shown[column - 1]}<br>positions %{{x:,.0f}} and %{{y:,.0f}}"
            figure.add_trace(go.Heatmap(
                z=grid, x=centers, y=centers, coloraxis="coloraxis",
                hovertemplate=f"{panel}<br>cosine %{{z:.3f}}<extra></extra>",
            ), row, column)  # fmt: skip
        figure.update_yaxes(title_text=f"layer {layer}", row=row, col=1)
    for column, head in enumerate(shown, start=1):
        figure.add_annotation(**ABOVE | {"x": 0.5, "xanchor": "center"}, text=f"KV head {head}", row=1, col=column)
        figure.update_xaxes(title_text="position", row=len(maps), col=column)
    block = f"{'up to ' if length % count else ''}{-(-length // count)}"
    pooled = f"mean of blocks of {block} tokens" if count < length else ""
    ticks = np.linspace(lowest, 1.0, 5 if lowest > 0 else 6)
    labels = [f"≤ {ticks[0]:.1f}", *(f"{tick:.2g}" for tick in ticks[1:])]
    scale = {"colorscale": MAP, "cmin": lowest, "cmax": 1.0,
             "colorbar": color_bar("cosine", tickvals=ticks, ticktext=labels)}  # fmt: skip
    figure.update_layout(template=template_name(dark), height=120 * len(maps) + 110, coloraxis=scale)
    set_title(figure, _title(title, "Cosine of keys", source, length, pooled), panel_titles=True)
    _square_axes(figure, length)
    return figure


def similarity_by_distance(
    source: Source,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    max_distance: int | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Mean cosine of two keys against their distance: one curve per layer, with its convex, non-increasing fit.

    As in CentroidKV fig. 3, which shows distances up to 256; its theorem assumes that the curve falls and is convex
    within a chunk. `source`: a Trace, or {layer: keys [H, L, D]}. `layers`: which to show, by default all, or five
    evenly spaced ones if there are more. Curves are means over `heads` (by default all key/value heads) at distances on
    a logarithmic scale up to `max_distance` (by default half the tokens). The legend gives the fit's root mean square
    error in cosine. Hovering over the fit shows R², the share of the curve's variance that it explains. A single layer
    gets a band from the 10% to the 90% quantile of the pairs, averaged over the heads.

    Raises InvalidInputError for a missing layer or head, a `max_distance` outside 3 to the number of tokens minus 1,
    and values that are not finite.

    >>> figure = similarity_by_distance({0: np.random.default_rng(0).normal(size=(1, 64, 8))})
    >>> figure.layout.yaxis.title.text
    'cosine of two keys'
    """
    keys, shown, length = _chosen("similarity_by_distance", source, "keys", layers, heads)
    distances = _distances("similarity_by_distance", length, max_distance)
    figure = Figure()
    for place, (layer, array) in enumerate(keys.items()):
        curve = metrics.similarity_by_distance(array[shown], distances)
        mean = curve.mean.mean(0)
        fit = metrics.convex_fit(distances, mean)
        color = ordered_tones(len(keys), dark)[place]
        if len(keys) == 1:
            figure.add_trace(_band(curve, color))
        name, fitted = f"layer {layer} ± {fit.error:.3f}", f"layer {layer}, convex fit, R² {fit.explained:.3f}"
        figure.add_trace(line(distances, mean, name, color, width=2))
        figure.add_trace(line(distances, fit.values, fitted, color, width=1.5, dash="dot", legend=False))
    fit_line = {"color": ink(dark).foreground, "width": 1.5, "dash": "dot"}
    figure.add_trace(legend_entry("lines", "convex fit ± RMS", line=fit_line))
    of = f"mean of {len(shown)} KV heads" if len(shown) > 1 else f"KV head {shown[0]}"
    text = _title(title, "Key cosine by distance", source, length, of)
    return _distance_axes(figure, text, distances, "cosine of two keys", dark)


def query_similarity_by_distance(
    source: Source,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Mean cosine of two queries after RoPE against their distance, with the values at 1, 64 and 1,024 tokens.

    As in CTkvr fig. 2a. The dotted line at 0.8 is the value that the paper reports to be exceeded within 1,000 tokens
    on most of its data. `source`: a Trace, or {layer: queries [Q, L, D]}. `layers`, `heads` (here query heads) and the
    band of a single layer as for `similarity_by_distance`. Distances are on a logarithmic scale up to half the tokens.
    With several layers, the thick line with the written values is their mean.

    Raises InvalidInputError for a missing layer or head and values that are not finite.

    >>> figure = query_similarity_by_distance({0: np.ones((1, 128, 8))})
    >>> [note.text for note in figure.layout.annotations]
    ['1.00', '1.00', '0.8: CTkvr']
    """
    queries, shown, length = _chosen("query_similarity_by_distance", source, "queries", layers, heads)
    distances = _distances("query_similarity_by_distance", length, None)
    curves = {layer: metrics.similarity_by_distance(array[shown], distances) for layer, array in queries.items()}
    neutral, several = ink(dark), len(curves) > 1
    claim, name = np.full(2, _CLAIM), "CTkvr, within 1,000 tokens"
    figure = Figure(line(distances[[0, -1]], claim, name, neutral.muted, width=1.5, dash="dot", legend=False))
    for place, (layer, curve) in enumerate(curves.items()):
        color = ordered_tones(len(curves), dark)[place]
        if not several:
            figure.add_trace(_band(curve, color))
        figure.add_trace(line(distances, curve.mean.mean(0), f"layer {layer}", color, width=1.5 if several else 2.5))
    mean = np.mean([curve.mean.mean(0) for curve in curves.values()], axis=0)
    if several:
        figure.add_trace(line(distances, mean, "mean", neutral.foreground, width=3))
    marked = np.flatnonzero(np.isin(distances, _MARKED))
    figure.add_trace(go.Scatter(
        x=distances[marked], y=mean[marked], mode="markers", showlegend=False, hoverinfo="skip",
        marker={"size": 9, "color": neutral.foreground, "line": {"width": 1.5, "color": neutral.background}},
    ))  # fmt: skip
    for place in marked.tolist():
        figure.add_annotation(
            x=np.log10(distances[place]), y=mean[place], text=f"{mean[place]:.2f}", showarrow=False, yshift=16,
            bgcolor=translucent(neutral.background, 0.85), borderpad=1, xanchor="left" if place == 0 else "center",
        )  # fmt: skip
    figure.add_annotation(
        x=1, y=_CLAIM, text=f"{_CLAIM}: CTkvr", xref="x domain", showarrow=False, xanchor="right", yanchor="bottom",
        borderpad=0, font={"color": neutral.muted},
    )  # fmt: skip
    of = f"mean of {len(shown)} query heads" if len(shown) > 1 else f"query head {shown[0]}"
    text = _title(title, "Query cosine by distance, after RoPE", source, length, of)
    return _distance_axes(figure, text, distances, "cosine of two queries", dark)


def _chosen(
    operation: str, source: Source, kind: str, layers: Sequence[int] | None, heads: Sequence[int] | None,
    most_layers: int = 5, most_heads: int | None = None,
) -> tuple[dict[int, Array], list[int], int]:  # fmt: skip
    """The chosen layers' arrays [heads, L, D], all of one shape; the heads to show; and L."""
    arrays: Mapping[int, Array] = getattr(source, kind) if isinstance(source, Trace) else source
    known = sorted(arrays)
    layers = _spread(known, most_layers) if layers is None else layers
    unknown = [layer for layer in layers if layer not in arrays]
    if unknown or not layers:
        raise InvalidInputError(f"{operation}: layers", unknown or "none", f"captured layers: {known}")
    chosen = {layer: np.asarray(arrays[layer]) for layer in layers}
    shapes = {array.shape for array in chosen.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 3:
        raise InvalidInputError(f"{operation}: {kind}", sorted(shapes), "one shape [heads, L, D] for all layers")
    count, length, _ = shapes.pop()
    shown = _spread(range(count), most_heads or count) if heads is None else list(heads)
    if not shown or not all(0 <= head < count for head in shown):
        raise InvalidInputError(f"{operation}: heads", shown, f"from 0 to {count - 1}")
    return chosen, shown, length


def _spread(known: Sequence[int], most: int) -> list[int]:
    """All of `known`, or `most` of them, evenly spaced from the first to the last."""
    return [known[place] for place in np.linspace(0, len(known) - 1, min(most, len(known))).round().astype(int)]


def _distances(operation: str, length: int, most: int | None) -> NDArray[np.int64]:
    """Distances on a logarithmic scale, including those that are marked."""
    most = length // 2 if most is None else most
    if not 3 <= most < length:
        raise InvalidInputError(f"{operation}: longest distance", most, f"3 to {length - 1}, for {length} tokens")
    return np.union1d(metrics.log_distances(2 * most), [mark for mark in _MARKED if mark <= most])


def _square_axes(figure: go.Figure, length: int) -> None:
    """Make all maps square, the first position at the top left, with ticks that do not run into the next map's."""
    most = max(0.8 * length, 1.0)
    power = 10 ** int(np.log10(most))
    ticks = {"tickvals": [0, power * max(step for step in (1, 2, 5) if step * power <= most)], "tickformat": "~s"}
    figure.update_xaxes(showgrid=False, constrain="domain", range=[-0.5, length - 0.5], **ticks)
    figure.update_yaxes(showgrid=False, constrain="domain", range=[length - 0.5, -0.5], **ticks)
    for axis in figure.select_yaxes():
        axis.scaleanchor = axis.anchor


def line(
    x: Array, y: Array, name: str, color: str, *, width: float, dash: str = "solid", legend: bool = True
) -> go.Scatter:
    """A named curve; hovering shows its name and the point."""
    return go.Scatter(
        x=x, y=y, mode="lines", name=name, showlegend=legend, line={"color": color, "width": width, "dash": dash},
        hovertemplate="%{fullData.name}<br>%{x:,}: %{y:.3f}<extra></extra>",
    )  # fmt: skip


def _band(curve: metrics.DistanceCurve, color: str) -> go.Scatter:
    low, high = curve.low.mean(0), curve.high.mean(0)
    return go.Scatter(
        x=np.concatenate([curve.distances, curve.distances[::-1]]), y=np.concatenate([high, low[::-1]]),
        mode="lines", line={"width": 0}, fill="toself", fillcolor=translucent(color, 0.18),
        name="10% to 90% of pairs", hoverinfo="skip",
    )  # fmt: skip


def _title(title: str | None, what: str, source: Source, length: int, detail: str) -> str:
    model = source.model if isinstance(source, Trace) else ""
    return heading(title, [what, model, f"{length:,} tokens", detail])


def _distance_axes(figure: go.Figure, text: str, distances: NDArray[np.int64], measured: str, dark: bool) -> go.Figure:
    figure.update_layout(template=template_name(dark), height=440, hovermode="closest")
    set_title(figure, text)
    ticks = [4**power for power in range(12) if 4**power <= distances[-1]]
    figure.update_xaxes(
        type="log", title_text="distance (tokens)", tickvals=ticks, ticktext=[f"{tick:,}" for tick in ticks],
        range=np.log10([0.9, distances[-1] * 1.35]),
    )  # fmt: skip
    figure.update_yaxes(title_text=measured)
    return figure
