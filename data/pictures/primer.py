"""Pictures of the primer (docs/primer.md): one figure per idea, from the recorded traces, without a model.

Those about attention itself are here; `primer_methods.py` has those about what methods keep and choose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from kvviz import metrics
from kvviz.plots.panels import ABOVE, panels, stack
from kvviz.plots.theme import BLUE, LIGHT, MAP, ORANGE, VERMILION, area_shades, attention_scale, legible, template_name
from kvviz.trace import Trace

LAYER, HEAD = 14, 1
STEP = 1993  # a position whose query looks far back in this head, while the text defines Python's grammar
WORDS = range(10, 34)  # positions whose words are on an axis
ROPE_BASE = 100_000.0  # of SmolLM2


def set_heading(figure: go.Figure, text: str, height: int, **layout: Any) -> go.Figure:
    """The figure with a title and a height in pixels."""
    figure.update_layout(template=template_name(), title_text=text, height=height, **layout)
    return figure


def about(trace: Trace, layer: int = LAYER, head: int | None = HEAD) -> str:
    """What was run, for a title."""
    return f"{trace.model} · layer {layer}" + (f", KV head {head}" if head is not None else "")


def kv_cache(prose: Trace) -> go.Figure:
    """Keys and values of the first tokens of a text, in one KV head: one column per token."""
    figure, inside = stack([130, 130], 34)
    words = [token.replace("\n", "↵").strip() or "␣" for token in prose.tokens[WORDS.start : WORDS.stop]]
    for row, (name, stored) in enumerate((("keys", prose.keys), ("values", prose.values)), 1):
        numbers = stored[LAYER][HEAD, WORDS.start : WORDS.stop].astype("float32").T
        limit = float(np.percentile(np.abs(numbers), 98))
        figure.add_trace(
            go.Heatmap(z=numbers, colorscale=MAP, zmin=-limit, zmax=limit, showscale=False, xgap=2), row=row, col=1
        )
        figure.add_annotation(**ABOVE, text=f"{name}: {numbers.shape[0]} numbers per token", row=row, col=1)
        figure.update_yaxes(visible=False, row=row, col=1)
    figure.update_xaxes(tickvals=list(range(len(WORDS))), ticktext=words, tickangle=-60, row=2, col=1)
    figure.update_xaxes(showticklabels=False, ticks="", row=1, col=1)
    text = f"One KV head of the cache · {about(prose)} · {len(WORDS)} of {len(prose):,} tokens"
    return set_heading(figure, text, round(inside) + 150)


def prefill_and_decode(prose: Trace) -> go.Figure:
    """The exact attention of the first tokens: a triangle, of which prefill computes most rows at once."""
    prompt, end, gap = 32, 40, 3
    first = np.arange(end)
    weights = metrics.attention_weights(prose.queries[LAYER][:, :end], prose.keys[LAYER][:, :end], first)[HEAD]
    logarithm = np.where(weights > 0, np.log10(np.maximum(weights, 1e-3)), np.nan)
    rows = np.concatenate([logarithm[:prompt], np.full((gap, end), np.nan), logarithm[prompt:]])
    scale = attention_scale(3)
    colors = {"colorscale": MAP, "zmin": scale["cmin"], "zmax": scale["cmax"], "colorbar": scale["colorbar"]}
    figure = go.Figure(go.Heatmap(z=rows, xgap=1, ygap=1, **colors))
    figure.update_yaxes(
        autorange="reversed", title_text="tokens that look back", showticklabels=False, ticks="", showgrid=False
    )
    figure.update_xaxes(title_text="keys: position in the text", showgrid=False)
    right = {"showarrow": False, "xref": "x", "yref": "y", "xanchor": "left", "align": "left"}
    figure.add_annotation(x=20, y=5, text=f"<b>prefill</b>: the {prompt} tokens of a prompt,<br>in one pass", **right)
    figure.add_annotation(
        x=12.5, y=prompt + gap / 2 - 0.5, text="<b>decode</b>: one row per step, over all keys so far", **right
    )
    return set_heading(figure, f"Attention of each token to those before it · {about(prose)}", 460)


def gqa(prose: Trace) -> go.Figure:
    """The exact weights of the query heads that share one KV head, at one step."""
    shared = prose.geometry.n_heads // prose.geometry.n_kv_heads
    weights = metrics.attention_weights(prose.queries[LAYER], prose.keys[LAYER], np.array([STEP]), group="each")[:, 0]
    numbers = range(HEAD * shared, (HEAD + 1) * shared)
    figure, places = panels([""] * shared, 1, 90, False, between=44)
    for number, color, place in zip(numbers, (BLUE, VERMILION, ORANGE), places, strict=True):
        seen = np.flatnonzero(weights[number] > 1e-4)
        stems_x = np.repeat(seen, 3).astype(float)
        stems_y = np.stack([np.full(len(seen), 1e-4), weights[number, seen], np.full(len(seen), np.nan)], 1).ravel()
        line = {"color": legible(color, LIGHT.background), "width": 1.2}
        figure.add_trace(go.Scatter(x=stems_x, y=stems_y, mode="lines", line=line, showlegend=False), **place)
        best = 1 + int(weights[number, 1:].argmax())
        text = f"query head {number}: most, besides the first token, to “{prose.tokens[best].strip()}” at {best:,}"
        figure.add_annotation(**ABOVE, text=text, **place)
        figure.update_yaxes(
            type="log", range=[-4, 0], tickvals=[1e-4, 1e-2, 1], ticktext=["0.0001", "0.01", "1"], **place
        )
        figure.update_xaxes(range=[-10, STEP + 10], showticklabels=place["row"] == shared, **place)
    figure.update_xaxes(title_text="keys: position in the text", **places[-1])
    figure.update_yaxes(title_text="weight", **places[1])
    text = f"{shared} query heads, the same keys · {about(prose)}, position {STEP:,}"
    return set_heading(figure, text, 470)


def rotated(vectors: NDArray[np.float32], turns: NDArray[Any], base: float = ROPE_BASE) -> NDArray[np.float64]:
    """Vectors [D] as RoPE turns them at positions [T], float64 [T, D]: channel i and i + D/2 make a pair."""
    half = vectors.shape[-1] // 2
    angles = np.asarray(turns, dtype=np.float64)[:, None] * base ** (-np.arange(half) / half)
    one, two = vectors[:half], vectors[half:]
    return np.concatenate(
        [one * np.cos(angles) - two * np.sin(angles), two * np.cos(angles) + one * np.sin(angles)], axis=1
    )


def rope(prose: Trace) -> go.Figure:
    """A pair of channels of a key at growing positions, and the cosine of the key with itself, moved away."""
    figure = make_subplots(1, 2, column_widths=[0.34, 0.66], horizontal_spacing=0.13)
    key = prose.keys[LAYER][HEAD, STEP].astype("float32")
    pair = 3
    half, steps = len(key) // 2, 10
    turned = rotated(key, np.arange(steps))[:, [pair, pair + half]]
    color = legible(BLUE, LIGHT.background)
    for number, (x, y) in enumerate(turned):
        line = {"color": color, "width": 3 if number == 0 else 1.2}
        figure.add_trace(go.Scatter(x=[0, x], y=[0, y], mode="lines", line=line, showlegend=False), row=1, col=1)
    labels = {"mode": "text", "text": [f"+{number}" if number else "0" for number in range(steps)]}
    figure.add_trace(go.Scatter(x=1.16 * turned[:, 0], y=1.16 * turned[:, 1], showlegend=False, **labels), row=1, col=1)
    reach = 1.35 * float(np.hypot(*turned[0]))
    figure.update_xaxes(range=[-reach, reach], title_text=f"channel {pair}", row=1, col=1)
    figure.update_yaxes(range=[-reach, reach], scaleanchor="x", title_text=f"channel {pair + half}", row=1, col=1)
    distances = np.arange(513)
    cosines = rotated(key, -distances) @ key / (key @ key)
    line = {"color": color, "width": 1.6}
    figure.add_trace(go.Scatter(x=distances, y=cosines, mode="lines", line=line, showlegend=False), row=1, col=2)
    end = {"xanchor": "right", "yanchor": "top", "yshift": -14, "showarrow": False}
    figure.add_annotation(x=512, y=cosines[-1], text=f"{cosines[-1]:.2f} at 512 tokens", row=1, col=2, **end)
    figure.update_xaxes(title_text="tokens apart", row=1, col=2)
    figure.update_yaxes(title_text="cosine of the two", range=[0, 1.03], row=1, col=2)
    text = f"The same content, at other positions · {about(prose)}, token “{prose.tokens[STEP].strip()}”"
    return set_heading(figure, text, 360)


def sinks(layers: Trace) -> go.Figure:
    """The share of the attention on the first token, the other sinks, the recent window and all else, by layer."""
    steps = np.arange(len(layers) // 2, len(layers))
    place = np.arange(len(layers))
    recent = place >= np.maximum(steps[:, None] - 63, 16)
    parts = {
        "the first token": place == 0, "tokens 1 to 15": (place > 0) & (place < 16),
        "the last 64": recent, "all others": (place >= 16) & ~recent,
    }  # fmt: skip
    shares: dict[str, list[float]] = {name: [] for name in parts}
    for layer in layers.layers:
        weights = metrics.attention_weights(layers.queries[layer], layers.keys[layer], steps)
        for name, chosen in parts.items():
            shares[name].append(float(np.where(chosen, weights, 0).sum(-1).mean()))
    figure = go.Figure()
    names = [f"layer {layer}" for layer in layers.layers]
    for (name, values), color in zip(shares.items(), area_shades(4), strict=True):
        text = [f"{value:.2f}" if value > 0.04 else "" for value in values]
        figure.add_trace(go.Bar(
            x=values, y=names, name=name, orientation="h", marker_color=color, text=text, textangle=0,
            textposition="inside", insidetextanchor="middle",
        ))  # fmt: skip
    figure.update_xaxes(title_text="share of the attention", range=[0, 1], tickvals=[0, 0.25, 0.5, 0.75, 1])
    figure.update_yaxes(autorange="reversed")
    heads = layers.geometry.n_kv_heads
    text = f"Where attention goes · {layers.model} · mean over {heads} KV heads and {len(steps)} steps"
    return set_heading(figure, text, 340, barmode="stack", bargap=0.35, legend_traceorder="normal")


FIGURES = (kv_cache, prefill_and_decode, gqa, rope, sinks)
