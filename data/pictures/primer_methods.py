"""Pictures of the primer (docs/primer.md) about what methods keep, and which tokens they choose at one step."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import torch
from numpy.typing import NDArray
from primer import HEAD, LAYER, STEP, about, set_heading

import kvviz
from kvviz import metrics
from kvviz.clustering import kmeans, product_quantize
from kvviz.plots.panels import panels
from kvviz.plots.theme import (
    BLUE,
    LIGHT,
    MAP,
    VERMILION,
    area_shades,
    attention_scale,
    legend_entry,
    legible,
    method_style,
)
from kvviz.trace import Recording, Trace

BUDGET, QUERIES = 256, 64
PAGE, ACROSS, PAGES = 16, 64, 15  # tokens of a page, tokens in a row of the map of all, pages shown
SINKS, WINDOW, CLUSTERS = 16, 32, 25
CODED = 371  # the key that the step's first query head attends to most


def played(prose: Trace, method: str) -> tuple[Recording, int]:
    """A method's choices on the last steps of the text, and the number of the primer's step among them."""
    recording = kvviz.replay(prose, method, queries=QUERIES, budget=BUDGET, dense_layers=0)
    return recording, STEP - (len(prose) - QUERIES)


def groups_of(recording: Recording, step: int) -> NDArray[np.int64]:
    """For each token up to the step: its group if the head selected it, -1 if it is always attended to, -2 if not."""
    groups = np.full(STEP + 1, -2)
    indices = recording.indices(step, LAYER)[HEAD]
    groups[indices[indices >= 0]] = recording.groups(step, LAYER)[HEAD][indices >= 0]
    return groups


def exact(prose: Trace) -> NDArray[np.float32]:
    """The exact weights of the step in the primer's KV head, mean over its query heads."""
    weights = metrics.attention_weights(prose.queries[LAYER], prose.keys[LAYER], np.array([STEP]))
    return weights[HEAD, 0, : STEP + 1]


def keys_of(prose: Trace, first: int, last: int) -> torch.Tensor:
    """The keys of the primer's KV head from one position up to another."""
    return torch.from_numpy(prose.keys[LAYER][HEAD, first:last].astype("float32"))


def budget(prose: Trace) -> go.Figure:
    """All tokens of the text, row by row, with those that ClusterKV attends to at one step."""
    groups = groups_of(*played(prose, "clusterkv"))
    place, alone = np.arange(len(groups)), groups == -1
    sinks = int(alone[:SINKS].sum())
    kinds = {
        "not attended to": groups == -2, "selected": groups >= 0,
        f"always attended to: {sinks} sinks and the {int(alone.sum()) - sinks} newest": alone,
    }  # fmt: skip
    figure = go.Figure()
    shades = (LIGHT.grid, method_style("clusterkv")["color"], LIGHT.foreground)
    for (name, chosen), shade in zip(kinds.items(), shades, strict=True):
        at, count = place[chosen], int(chosen.sum())
        figure.add_trace(go.Bar(
            x=at % ACROSS, y=np.full(count, 0.84), base=at // ACROSS - 0.42, width=0.84, name=f"{count:,} {name}",
            marker={"color": shade, "line": {"width": 0}},
        ))  # fmt: skip
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False, autorange="reversed")
    text = f"All {len(groups):,} tokens, one square each · clusterkv, budget {BUDGET} · {about(prose)}"
    figure.update_layout(barmode="overlay", legend_traceorder="normal")
    return set_heading(figure, text, 430)


def page(prose: Trace) -> go.Figure:
    """The pages that Quest fetches at one step, one per row, best bound first, with the weight of each token."""
    recording, step = played(prose, "quest")
    groups, weights = groups_of(recording, step), exact(prose)
    best = np.zeros(len(weights), dtype=bool)
    best[recording.oracle(step, LAYER)[HEAD]] = True
    scores = {int(groups[position]): score for position, score in _scored(recording, step)}
    order = sorted(scores, key=scores.__getitem__, reverse=True)[:PAGES]
    cells = np.array([np.arange(number * PAGE, (number + 1) * PAGE) for number in order])
    scale = attention_scale(4)
    colors = {"colorscale": MAP, "zmin": scale["cmin"], "zmax": scale["cmax"], "colorbar": scale["colorbar"]}
    figure = go.Figure(go.Heatmap(z=np.log10(np.maximum(weights[cells], 1e-5)), xgap=2, ygap=3, **colors))
    rows, columns = np.nonzero(best[cells])
    dots = {"color": LIGHT.background, "size": 7, "line": {"width": 1.5, "color": LIGHT.foreground}}
    name = f"among the {int(best.sum())} tokens with the most attention"
    figure.add_trace(go.Scatter(x=columns, y=rows, mode="markers", marker=dots, name=name, showlegend=True))
    ticks = {"tickvals": list(range(len(order))), "ticktext": [f"page {number}" for number in order]}
    figure.update_yaxes(autorange="reversed", showgrid=False, **ticks)
    figure.update_xaxes(title_text="token of the page", showgrid=False, dtick=1)
    found = f"{best[cells].sum()} of {cells.size} fetched tokens are among the best"
    text = f"{found} · quest, budget {BUDGET} · {about(prose)}"
    return set_heading(figure, text, 470)


def _scored(recording: Recording, step: int) -> list[tuple[int, float]]:
    """Positions that the head selected, with their scores."""
    indices, groups = recording.indices(step, LAYER)[HEAD], recording.groups(step, LAYER)[HEAD]
    scores = recording.scores(step, LAYER)[HEAD]
    chosen = (indices >= 0) & (groups >= 0)
    return list(zip(indices[chosen].tolist(), scores[chosen].tolist(), strict=True))


def centroid(prose: Trace) -> go.Figure:
    """q·k of all keys by cluster, and q·centroid: since a centroid is a mean, so is its product."""
    shared = prose.geometry.n_heads // prose.geometry.n_kv_heads
    query = prose.queries[LAYER][HEAD * shared : (HEAD + 1) * shared, STEP].astype("float32").mean(0)
    keys = keys_of(prose, SINKS, STEP - WINDOW)
    labels = kmeans(keys, CLUSTERS).labels.numpy()
    products = keys.numpy() @ query
    means = np.array([products[labels == number].mean() for number in range(CLUSTERS)])
    ranks = np.argsort(np.argsort(-means))[labels]
    spread = np.random.default_rng(0).uniform(-0.3, 0.3, len(keys))
    figure = go.Figure()
    dots = {"size": 3, "color": legible(BLUE, LIGHT.background)}
    figure.add_trace(go.Scatter(x=ranks + spread, y=products, mode="markers", marker=dots, name="q·k"))
    line = {"symbol": "line-ew", "size": 20, "line": {"width": 3, "color": LIGHT.foreground}}
    figure.add_trace(
        go.Scatter(x=np.arange(CLUSTERS), y=-np.sort(-means), mode="markers", marker=line, name="q·centroid")
    )
    top = int(products.argmax())
    figure.add_annotation(
        x=ranks[top] + spread[top], y=products[top], text=f"the best key: in cluster {ranks[top] + 1}", showarrow=True,
        ax=60, ay=0, xanchor="left", arrowhead=0, arrowcolor=LIGHT.muted, standoff=5,
    )  # fmt: skip
    figure.update_xaxes(title_text="clusters, best q·centroid first", tickvals=list(range(0, CLUSTERS, 4)),
                        ticktext=[str(rank + 1) for rank in range(0, CLUSTERS, 4)], showgrid=False)  # fmt: skip
    figure.update_yaxes(title_text="inner product")
    text = f"{len(keys):,} keys in {CLUSTERS} clusters, and the query of one step · {about(prose)}"
    return set_heading(figure, text, 400)


def codebook(prose: Trace) -> go.Figure:
    """The numbers of one key, and of the two codewords that stand for it."""
    keys = keys_of(prose, 0, len(prose) - QUERIES)
    book = product_quantize(keys, n_partitions=2, n_bits=6)
    codes, stands = book.codes[CODED].tolist(), book.reconstruct()[CODED].numpy()
    channels = np.arange(keys.shape[-1])
    figure = go.Figure()
    figure.add_trace(go.Bar(
        x=channels, y=keys[CODED].numpy(), name="the key", marker_color=area_shades(2)[1], width=0.8,
    ))  # fmt: skip
    line = {"shape": "hvh", "width": 2, "color": legible(VERMILION, LIGHT.background)}
    for part, code in enumerate(codes):
        at = slice(part * 32, (part + 1) * 32)
        name = f"part {part + 1}: codeword {code}"
        figure.add_trace(go.Scatter(x=channels[at], y=stands[at], mode="lines", line=line, name=name))
    figure.add_vline(x=31.5, line={"width": 1.5, "color": LIGHT.muted, "dash": "dash"})
    figure.update_xaxes(title_text="channel", showgrid=False)
    figure.update_yaxes(title_text="value")
    text = f"A key of 64 numbers, and its codes {codes[0]} and {codes[1]} · {about(prose)}"
    return set_heading(figure, text, 380)


def recall_and_attention_mass(prose: Trace) -> go.Figure:
    """The tokens with the most attention at one step, in order, and which of them two methods attend to."""
    weights, methods = exact(prose), ("quest", "clusterkv")
    order = np.argsort(-weights)
    figure, places = panels([""] * len(methods), 1, 150, False)
    for method, place in zip(methods, places, strict=True):
        recording, step = played(prose, method)
        attended = groups_of(recording, step) > -2
        ranks = np.arange(int(attended.sum()))
        color = method_style(method)["color"]
        for found in (True, False):
            chosen = attended[order[ranks]] == found
            fill = color if found else LIGHT.background
            marker = {"size": 6, "color": fill, "line": {"width": 1.2, "color": color if found else LIGHT.foreground}}
            at = ranks[chosen]
            figure.add_trace(go.Scatter(x=at + 1, y=weights[order[at]], mode="markers", marker=marker,
                                        showlegend=False), **place)  # fmt: skip
        recall, mass = (float(number(step, LAYER)[HEAD]) for number in (recording.recall, recording.attention_mass))
        text = f"{method}: recall {recall:.2f}, attention mass {mass:.2f}"
        figure.add_annotation(showarrow=False, xref="x domain", yref="y domain", x=1, y=1, xanchor="right",
                              yanchor="top", text=text, **place)  # fmt: skip
        figure.update_yaxes(type="log", title_text="weight", tickvals=[1e-4, 1e-3, 1e-2, 0.1],
                            ticktext=["0.0001", "0.001", "0.01", "0.1"], **place)  # fmt: skip
        figure.update_xaxes(type="log", tickvals=[1, 2, 5, 10, 20, 50, 100, 200], **place)
    for name, fill in (("attended to", LIGHT.muted), ("missed", LIGHT.background)):
        marker = {"size": 8, "color": fill, "line": {"width": 1.2, "color": LIGHT.foreground}}
        figure.add_trace(legend_entry("markers", name, marker=marker))
    figure.update_xaxes(title_text="tokens by attention, the strongest first", **places[-1])
    return set_heading(figure, f"One step, two methods, budget {BUDGET} · {about(prose)}", 470)


FIGURES = (budget, page, centroid, codebook, recall_and_attention_mass)
