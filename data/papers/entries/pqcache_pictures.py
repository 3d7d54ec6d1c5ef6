"""Pictures of PQCache's mechanism, from a recorded trace: product quantization of a real key, and a table of names."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
import sources
import torch
from plotly.subplots import make_subplots

from kvviz.clustering import product_quantize

LAYER, HEAD, QUERY_HEAD, SINKS, STEPS, TOKEN = 14, 1, 3, 4, 32, 500


class Quantized(NamedTuple):
    """One quantized KV head: keys [L, D], a query [D], codes [L, m], centroids [m, C, D/m], scores [L]."""

    keys: Any
    query: Any
    codes: Any
    centroids: Any
    table: Any  # [m, C], query · centroid
    exact: Any  # [L]
    approximate: Any  # [L]


def quantized(n_partitions: int = 2, n_bits: int = 6) -> Quantized:
    """The keys of the recorded prose in one layer and KV head, and the query of its last position."""
    trace = sources.runs().trace("prose")
    keys = torch.from_numpy(trace.keys[LAYER][HEAD, SINKS : len(trace) - STEPS].astype("float32"))
    query = torch.from_numpy(trace.queries[LAYER][QUERY_HEAD, -1].astype("float32"))
    book = product_quantize(keys, n_partitions=n_partitions, n_bits=n_bits)
    table = torch.einsum("pd, pcd -> pc", query.view(n_partitions, -1), book.centroids)
    approximate = book.scores(query[None])[0]
    return Quantized(
        *(each.numpy() for each in (keys, query, book.codes, book.centroids, table, keys @ query, approximate))
    )


def product_quantization() -> go.Figure:
    """A key and its codewords; the look-up table of a query; approximate against exact scores of all tokens."""
    made = quantized()
    parts, width = made.centroids.shape[0], made.centroids.shape[2]
    codes = made.codes[TOKEN].astype(int)
    names = (
        f"a key and its codewords {codes[0]} and {codes[1]}",
        "look-up table of a query; circles: the key's",
        f"sum of the entries, all tokens: r = {np.corrcoef(made.exact, made.approximate)[0, 1]:.2f}",
    )
    figure = make_subplots(3, 1, subplot_titles=names, vertical_spacing=0.13)
    channels = np.arange(parts * width)
    codewords = np.concatenate([made.centroids[part, codes[part]] for part in range(parts)])
    figure.add_scatter(x=channels, y=made.keys[TOKEN], name="key", mode="lines", row=1, col=1)
    figure.add_scatter(x=channels, y=codewords, name="codewords", mode="lines", line_dash="dot", row=1, col=1)
    figure.add_vline(x=width - 0.5, line_width=1, row=1, col=1)
    figure.update_xaxes(title_text="channel", row=1, col=1)
    for part in range(parts):
        look = {"name": f"part {part + 1}", "mode": "markers", "marker_size": 5}
        figure.add_scatter(x=np.arange(len(made.table[part])), y=made.table[part], **look, row=2, col=1)
        figure.add_scatter(
            x=[codes[part]], y=[made.table[part, codes[part]]], mode="markers", showlegend=False,
            marker={"symbol": "circle-open", "size": 12, "color": "black", "line": {"width": 1.5}}, row=2, col=1,
        )  # fmt: skip
    figure.update_xaxes(title_text="code", row=2, col=1)
    figure.add_scatter(
        x=made.exact, y=made.approximate, mode="markers", marker={"size": 3, "opacity": 0.4}, name="a token",
        showlegend=False, row=3, col=1,
    )  # fmt: skip
    figure.update_xaxes(title_text="exact score q · k", row=3, col=1)
    figure.update_yaxes(title_text="approximate", row=3, col=1)
    figure.update_annotations(font_size=12)
    return figure.update_layout(
        template="kvviz_light", height=760, title_text="Product quantization of a real key: m = 2, b = 6", margin_t=70,
    )  # fmt: skip


# The paper's symbols, what they mean, and where kvviz has them.
NAMES = (
    ("n", "batch size", "B in [B, H, L, D]"),
    ("s", "sequence length", "L"),
    ("d", "hidden size", "config.hidden_size"),
    ("h, h_kv", "heads", "n_heads, n_kv_heads"),
    ("d_h", "width of a head", "head_dim"),
    ("m", "partitions", "n_partitions"),
    ("b", "bits per code", "n_bits"),
    ("d_m", "their width", "centroids.shape[-1]"),
    ("k", "tokens attended to", "budget"),
    ("T", "iterations", "max_iter"),
)


def notation() -> go.Figure:
    """The paper's symbols beside kvviz's names, with the values of the recorded trace's codebook."""
    trace, made = sources.runs().trace("prose"), quantized()
    geometry = trace.geometry
    values = {
        "n": "1", "s": f"{len(trace):,}", "h, h_kv": f"{geometry.n_heads}, {geometry.n_kv_heads}",
        "d": f"{geometry.n_heads * geometry.head_dim}", "d_h": str(geometry.head_dim), "m": str(made.codes.shape[1]),
        "b": str((made.centroids.shape[1] - 1).bit_length()), "d_m": str(made.centroids.shape[-1]),
    }  # fmt: skip
    columns = [*zip(*NAMES, strict=True), tuple(values.get(symbol, "set") for symbol, _, _ in NAMES)]
    head = ["paper", "meaning", "kvviz", "here"]
    cells = {"align": "left", "font_size": 11, "height": 22}
    figure = go.Figure(go.Table(
        columnwidth=[0.55, 1.0, 1.25, 0.5], header={"values": head, **cells}, cells={"values": columns, **cells}
    ))  # fmt: skip
    text = f"Notation, with the values of {trace.model}"
    return figure.update_layout(template="kvviz_light", height=500, title_text=text, margin={"l": 4, "r": 4, "b": 4})
