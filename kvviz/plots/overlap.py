"""Query overlap: how many of their top-k keys two queries share, by how similar the queries are."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from .. import metrics
from ..errors import InvalidInputError
from ..trace import Trace
from .contrast import legible
from .cosine_similarity import line
from .first_layer import layer_or_first
from .labels import heading, set_title
from .powers import raised
from .theme import BLUE, PURPLE, ink, template_name, translucent
from .themed_figure import Figure

_BOUND_QUERIES = 32  # queries over which a bound is averaged


def query_overlap(
    trace: Trace,
    layer: int | None = None,
    k: int = 64,
    *,
    pairs: int = 2000,
    seed: int = 0,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Overlap of two queries' top-k keys against the queries' cosine: one dot per pair, the trend, and two bounds.

    As in CTkvr fig. 2b with the bound of its appendix A. The pairs are those of `metrics.topk_overlap`, over all query
    heads of a captured `layer` (by default the first); at most 5,000. The legend gives the trend's Pearson correlation,
    the mean overlap of unrelated choices, and the cosine from which each bound of `metrics.overlap_bound` exceeds 0:
    Theorem 1 as published and a sharper bound. The bounds are means over 32 of the queries.

    Raises InvalidInputError for a layer that was not captured, `pairs` outside 2 to 5,000, and a `k` outside 1 to half
    the tokens.

    >>> from kvviz.trace import Geometry
    >>> keys = {0: np.random.default_rng(0).normal(size=(1, 64, 8)).astype(np.float16)}
    >>> trace = Trace("example", Geometry(1, 1, 1, 8, 64), ["a"] * 64, np.arange(64), keys, keys, keys)
    >>> len(query_overlap(trace, 0, k=8, pairs=100).data[0].x)
    100
    """
    if not 2 <= pairs <= 5000:
        raise InvalidInputError("query_overlap: pairs", pairs, "2 to 5,000")
    layer = layer_or_first("query_overlap", layer, trace)
    queries, keys = trace.queries[trace.check_layer(layer)], trace.keys[layer]
    sampled = metrics.topk_overlap(queries, keys, k, pairs, seed)
    trend = metrics.linear_fit(sampled.cosine, sampled.overlap)
    ends = np.array([sampled.cosine.min(), sampled.cosine.max()])
    chance = float((k / (sampled.first + 1)).mean())
    neutral = ink(dark)
    figure = Figure(go.Scatter(
        x=sampled.cosine, y=sampled.overlap, mode="markers", name="pair of queries",
        customdata=np.stack([sampled.head, sampled.first, sampled.second], -1),
        hovertemplate="query head %{customdata[0]}, positions %{customdata[1]:,} and %{customdata[2]:,}<br>"
        "cosine %{x:.3f}, overlap %{y:.2f}<extra></extra>",
        marker={"size": 4, "color": translucent(PURPLE, 0.35)},
    ))  # fmt: skip
    label = f"trend, r = {trend.correlation:.2f}"
    figure.add_trace(line(ends, trend.slope * ends + trend.intercept, label, neutral.foreground, width=2.5))
    label, everywhere = f"unrelated choices, {chance:.2f}", np.array([-1.0, 1.0])
    figure.add_trace(line(everywhere, np.full(2, chance), label, neutral.muted, width=1, dash="dash"))
    figure.add_traces(_bounds(trace, layer, k, sampled, dark))
    text = heading(title, [
        f"Overlap of top-{k} keys", trace.model, f"{len(trace):,} tokens", f"layer {layer}",
        f"{trace.geometry.n_heads} query heads", f"{pairs:,} pairs", f"seed {seed}",
    ])  # fmt: skip
    figure.update_layout(template=template_name(dark), height=500, hovermode="closest")
    set_title(figure, text)
    left = min(float(np.floor(10 * ends[0]) / 10), 0.9)
    figure.update_xaxes(title_text="cosine of the two queries", range=[left, 1.01])
    figure.update_yaxes(title_text="overlap (share)", range=[-0.03, 1.03])
    return figure


def _bounds(trace: Trace, layer: int, k: int, pairs: metrics.QueryPairs, dark: bool) -> list[go.Scatter]:
    """The two bounds against the cosine. Near 1 the axis is too coarse, so the legend says where each bound begins."""
    gaps = np.geomspace(1e-9, 1.0, 91)  # 1 − cosine
    chosen = np.linspace(0, len(pairs.head) - 1, _BOUND_QUERIES).astype(np.int64)
    lines = []
    for sharp, name, dash in ((False, "Theorem 1", "dot"), (True, "sharper bound", "solid")):
        bound = np.mean([
            metrics.overlap_bound(
                trace.queries[layer][head, first], trace.keys[layer][head // trace.geometry.group_size, : first + 1],
                k, 1.0 - gaps, sharp=sharp,
            )
            for head, first in zip(pairs.head[chosen], pairs.first[chosen], strict=True)
        ], axis=0)  # fmt: skip
        useful = gaps[bound > 0]
        begins = f"above 0 from {_near_one(useful[-1])}" if len(useful) else "0 everywhere"
        lines.append(
            line(1.0 - gaps, bound, f"{name}: {begins}", legible(BLUE, ink(dark).background), width=2, dash=dash)
        )
    return lines


def _near_one(gap: float) -> str:
    """A cosine of 1 − `gap` as text.

    >>> _near_one(0.02), _near_one(2e-7), _near_one(1e-4)
    ('0.980', '1 − 2×10⁻⁷', '1 − 10⁻⁴')
    """
    if gap >= 0.002:
        return f"{1 - gap:.3f}"
    factor, _, power = f"{gap:.0e}".partition("e-")
    return f"1 − {factor + '×' if factor != '1' else ''}10{raised(-int(power))}"
