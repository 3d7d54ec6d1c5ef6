"""Semantic space: the keys of one head in two dimensions, to see which tokens are close together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .. import metrics
from ..errors import InvalidInputError, UnknownNameError
from ..trace import Recording, Trace
from .first_layer import layer_or_first
from .labels import escape, heading, set_title
from .marks import DECADES, level
from .projection import PROJECTIONS, project
from .theme import attention_scale, cluster_color, cluster_line, ink, template_name
from .themed_figure import Figure

Array = NDArray[Any]


@dataclass(frozen=True)
class _Scene:
    keys: NDArray[np.float64]  # [L, D]
    tokens: Sequence[str] | None  # L
    clusters: NDArray[np.int64] | None  # [L]
    centroids: NDArray[np.float64]  # [C, D], C may be 0
    query: NDArray[np.float64]  # [0 or 1, D]
    weights: NDArray[np.float64] | None  # [L]
    attended: NDArray[np.bool_]  # [L]


def semantic_space(
    source: Trace | Array,
    layer: int | None = None,
    head: int = 0,
    *,
    clusters: Array | None = None,
    centroids: Array | None = None,
    query: Array | None = None,
    weights: Array | None = None,
    recording: Recording | None = None,
    step: int = 0,
    tokens: Sequence[str] | None = None,
    projection: Literal["pca", "tsne"] = "pca",
    seed: int = 0,
    max_points: int = 2000,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A 2-D map of one head's keys: one dot per token, rings for centroids, a star for the query.

    As in ClusterKV (arXiv 2412.03213) fig. 2 and 4. Dots are coloured by cluster (hue; lightness by attention if the
    weights are known too), else by attention weight (cividis, logarithmic), else neutral.

    `source`: a Trace, of which `layer` (by default the first) and key/value `head` are shown, or keys [L, D] (then
    `layer` and `head` only say which they are). `clusters`: int [L], -1 for tokens in no cluster. `centroids`: [C, D].
    `query`: [D], drawn at the keys' mean length, since its length changes no ranking. `weights`: attention [L].
    `recording` with `step`: highlights the tokens that its method attends to at that step, and is the source of the
    weights if there are no `weights`. `tokens`: L texts for hovering, by default those of the trace.

    `projection`: "pca" (fitted on all keys) or "tsne" (cosine, on the keys shown). Of more than `max_points` tokens, a
    sample is shown, and the title says so: a quarter are the most attended ones, the rest is drawn with `seed`.

    Raises InvalidInputError for a missing layer or head, shapes that do not fit, values that are not finite, or a
    recording of another model or text than the trace; UnknownNameError for an unknown projection.

    >>> keys = np.random.default_rng(0).normal(size=(20, 4))
    >>> figure = semantic_space(keys, clusters=np.arange(20) % 3, query=keys[0])
    >>> [trace.name for trace in figure.data]
    ['token', 'query']
    """
    if projection not in PROJECTIONS:
        raise UnknownNameError("semantic_space: projection", str(projection), PROJECTIONS)
    if max_points < 8:
        raise InvalidInputError("semantic_space: max_points", max_points, "8 or more")
    if isinstance(source, Trace):
        layer = layer_or_first("semantic_space", layer, source, *([] if recording is None else [recording]))
    keys, tokens, layer = _keys(source, layer, head, tokens)
    attended = np.zeros(len(keys), bool)
    if recording is not None:
        if isinstance(source, Trace):
            source.check_recording("semantic_space: recording", recording, min(len(source), len(recording.tokens)))
        attended, exact = _step(recording, layer, head, step, len(keys))
        weights = exact if weights is None else weights
    scene = _Scene(
        keys, tokens, _labels(clusters, len(keys)), _vectors("centroids", centroids, keys.shape[1]),
        _vectors("query", None if query is None else np.atleast_2d(query)[:1], keys.shape[1]),
        _weights(weights, len(keys)), attended,
    )  # fmt: skip
    shown = _thin_out(len(keys), max_points, scene.weights, seed)
    length = float(np.linalg.norm(keys, axis=-1).mean())
    star = scene.query * (length / np.maximum(np.linalg.norm(scene.query, axis=-1, keepdims=True), 1e-30))
    places, axes = project(keys, shown, np.concatenate([scene.centroids, star]), projection, seed)
    figure = Figure(_traces(scene, shown, places, dark))
    model = source.model if isinstance(source, Trace) else recording.model if recording is not None else ""
    text = heading(title, [
        "Keys in two dimensions" + (", one hue per cluster" if clusters is not None else ""),
        model, f"{len(keys):,} tokens", f"layer {layer}, KV head {head}" if layer is not None else "",
        f"{recording.method}, budget {recording.budget:,}, step {step}" if recording is not None else "",
        f"{len(shown):,} shown" if len(shown) < len(keys) else "",
        f"seed {seed}" if len(shown) < len(keys) or projection == "tsne" else "",
    ])  # fmt: skip
    figure.update_layout(template=template_name(dark), height=520, hovermode="closest")
    set_title(figure, text)
    figure.update_xaxes(title_text=axes[0], showgrid=False)
    figure.update_yaxes(title_text=axes[1], showgrid=False, scaleanchor="x")  # a unit has the same length on both axes
    return figure


def _keys(
    source: Trace | Array, layer: int | None, head: int, tokens: Sequence[str] | None
) -> tuple[NDArray[np.float64], Sequence[str] | None, int | None]:
    if isinstance(source, Trace):
        assert layer is not None
        if not 0 <= head < source.geometry.n_kv_heads:
            raise InvalidInputError("semantic_space: head", head, f"0 to {source.geometry.n_kv_heads - 1}")
        array: Array = source.keys[source.check_layer(layer)][head]
        tokens = source.tokens if tokens is None else tokens
    else:
        array = np.asarray(source)
    if array.ndim != 2 or min(array.shape) < 2:
        wanted = "[L, D] with at least 2 tokens and 2 dimensions"
        raise InvalidInputError("semantic_space: keys", list(array.shape), wanted)
    keys = array.astype(np.float64)
    if not np.isfinite(keys).all():
        raise InvalidInputError("semantic_space: keys", "NaN or infinity", "finite keys")
    if tokens is not None and len(tokens) != len(keys):
        raise InvalidInputError("semantic_space: tokens", f"{len(tokens)} tokens", f"{len(keys)}, one per key")
    return keys, tokens, layer


def _step(
    recording: Recording, layer: int | None, head: int, step: int, length: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Attended tokens [L] and exact attention [L] of a key/value head; rows of its query heads are combined."""
    if layer is None:
        raise InvalidInputError("semantic_space: layer", None, f"a recorded layer: {recording.layers}")
    chosen, exact = recording.indices(step, layer), recording.attention(step, layer)
    rows = len(chosen) // recording.geometry.n_kv_heads  # 1, or the query heads of a group
    if not 0 <= head < recording.geometry.n_kv_heads:
        raise InvalidInputError("semantic_space: head", head, f"0 to {recording.geometry.n_kv_heads - 1}")
    group = slice(head * rows, (head + 1) * rows)
    visible = exact.shape[-1]
    attended, weights = np.zeros(length, bool), np.zeros(length)
    attended[:visible] = np.any(metrics.member_mask(chosen[group], visible)[:, :length], axis=0)
    weights[:visible] = exact[group, :length].mean(0)
    return attended, weights


def _labels(clusters: Array | None, length: int) -> NDArray[np.int64] | None:
    if clusters is None:
        return None
    labels = np.asarray(clusters)
    if labels.shape != (length,) or not np.issubdtype(labels.dtype, np.integer):
        got = f"{labels.dtype} {list(labels.shape)}"
        raise InvalidInputError("semantic_space: clusters", got, f"integers [{length}]")
    return labels.astype(np.int64)


def _vectors(name: str, vectors: Array | None, dimensions: int) -> NDArray[np.float64]:
    if vectors is None:
        return np.zeros((0, dimensions))
    array = np.asarray(vectors, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != dimensions or not np.isfinite(array).all():
        wanted = f"finite vectors of {dimensions} dimensions"
        raise InvalidInputError(f"semantic_space: {name}", list(array.shape), wanted)
    return array


def _weights(weights: Array | None, length: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
    array = np.asarray(weights, dtype=np.float64)
    if array.shape != (length,) or not (np.isfinite(array) & (array >= 0)).all():
        wanted = f"finite weights [{length}], none negative"
        raise InvalidInputError("semantic_space: weights", list(array.shape), wanted)
    return array


def _thin_out(length: int, most: int, weights: NDArray[np.float64] | None, seed: int) -> NDArray[np.int64]:
    if length <= most:
        return np.arange(length)
    heaviest = np.zeros(0, np.int64) if weights is None else np.argsort(-weights, kind="stable")[: most // 4]
    others = np.setdiff1d(np.arange(length), heaviest)
    sampled = np.random.default_rng(seed).choice(others, most - len(heaviest), replace=False)
    return np.sort(np.concatenate([heaviest, sampled]))


def _traces(scene: _Scene, shown: NDArray[np.int64], places: NDArray[np.float64], dark: bool) -> list[go.Scatter]:
    neutral, count = ink(dark), len(shown)
    traces = []
    for name, chosen in (("not attended", ~scene.attended[shown]), ("attended", scene.attended[shown])):
        if chosen.any():
            traces.append(_dots(name, scene, shown[chosen], places[:count][chosen], dark))
    middle = count + len(scene.centroids)
    if len(scene.centroids):
        ring = [cluster_line(cluster, dark) for cluster in range(len(scene.centroids))]
        traces.append(go.Scatter(
            x=places[count:middle, 0], y=places[count:middle, 1], mode="markers", name="centroid",
            text=[f"centroid {cluster}" for cluster in range(len(ring))], hovertemplate="%{text}<extra></extra>",
            marker={"symbol": "circle-open", "size": 15, "color": ring, "line": {"width": 2.5}},
        ))  # fmt: skip
    if len(scene.query):
        traces.append(go.Scatter(
            x=places[middle:, 0], y=places[middle:, 1], mode="markers", name="query",
            hovertemplate="query<extra></extra>",
            marker={"symbol": "star", "size": 16, "color": neutral.foreground,
                    "line": {"width": 1.5, "color": neutral.background}},
        ))  # fmt: skip
    return traces


def _dots(name: str, scene: _Scene, shown: NDArray[np.int64], places: NDArray[np.float64], dark: bool) -> go.Scatter:
    """One dot per token, the most attended drawn last, so that no other dot hides them."""
    if scene.weights is not None:
        order = np.argsort(scene.weights[shown], kind="stable")
        shown, places = shown[order], places[order]
    compared = bool(scene.attended.any())
    small, outlined = compared and name == "not attended", compared and name == "attended"
    marker: dict[str, Any] = {
        "size": 4 if small else 7 if outlined else 6, "opacity": 0.7 if small else 1.0,
        "line": {"width": 0.8 if outlined else 0, "color": ink(dark).foreground},
    }  # fmt: skip
    return go.Scatter(
        x=places[:, 0], y=places[:, 1], mode="markers", name=name if compared else "token", showlegend=compared,
        marker=marker | _dot_colors(scene, shown, dark), text=_hover(scene, shown),
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip


def _dot_colors(scene: _Scene, shown: NDArray[np.int64], dark: bool) -> dict[str, Any]:
    weights = None if scene.weights is None else scene.weights[shown]
    if scene.clusters is not None:
        strength = np.full(len(shown), 0.8) if weights is None else 0.3 + 0.7 * level(weights)
        return {"color": [
            cluster_color(int(cluster), float(weight), dark) if cluster >= 0 else ink(dark).muted
            for cluster, weight in zip(scene.clusters[shown], strength, strict=True)
        ]}  # fmt: skip
    if weights is None:
        return {"color": ink(dark).muted}
    return {"color": DECADES * (level(weights) - 1), "showscale": True, **attention_scale(DECADES)}


def _hover(scene: _Scene, shown: NDArray[np.int64]) -> list[str]:
    lines = []
    for position in shown.tolist():
        text = f"“{escape(scene.tokens[position])}”<br>" if scene.tokens is not None else ""
        text += f"position {position:,}"
        if scene.clusters is not None:
            text += f"<br>cluster {scene.clusters[position]}" if scene.clusters[position] >= 0 else "<br>in no cluster"
        if scene.weights is not None:
            text += f"<br>attention {scene.weights[position]:.4f}"
        lines.append(text)
    return lines
