"""Importance of tokens: how attention is distributed over them, and how their ranks change from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .. import metrics
from ..errors import InvalidInputError
from ..trace import Recording, Trace
from .first_layer import layer_or_first
from .labels import escape, heading, set_title
from .powers import power_of_ten
from .theme import cluster_line, ink, template_name, translucent
from .themed_figure import Figure

Array = NDArray[Any]
STEPS = 64  # as in ClusterKV's fig. 3a; also the default of `kvviz.replay`
_SYMBOLS = ("circle", "diamond-open", "square", "triangle-up-open")  # dashes would hide single steps
_MAX_RANKS = 300  # points per curve, evenly spaced on the logarithmic axis
_SHARES = {0.5: "dash", 0.9: "dot"}


@dataclass(frozen=True)
class Observed:
    """Exact attention of the last T steps of a trace or recording: R rows over N tokens, 0 after the query."""

    weights: NDArray[np.float32]  # [R, T, N]
    visible: NDArray[np.int64]  # [T] tokens that each step can attend to, itself included
    tokens: Sequence[str]  # N
    about: tuple[str, ...]  # what was run, for the title
    axis: str  # label of the axis of steps
    row_name: str  # "KV head" or "query head"


def observe(
    operation: str, source: Trace | Recording, layer: int | None, steps: int | None, *, by_query_head: bool = False
) -> Observed:
    """The exact attention of the last `steps` steps (None: 64, or all if there are fewer) in a layer (None: the first).

    Rows are key/value heads: means over the query heads of a group. With `by_query_head`, they are a trace's query
    heads, or a recording's rows as recorded. Raises InvalidInputError for a layer or number of steps out of range.
    """
    layer = layer_or_first(operation, layer, source)
    length = len(source.tokens)
    most = length if isinstance(source, Trace) else source.steps
    count = min(STEPS, most) if steps is None else steps
    if not 1 <= count <= most:
        raise InvalidInputError(f"{operation}: steps", count, f"1 to {most}")
    positions = np.arange(length - count, length)
    row_name = "query head" if by_query_head else "KV head"
    if isinstance(source, Trace):
        queries, keys = source.queries[source.check_layer(layer)], source.keys[layer]
        weights = metrics.attention_weights(
            queries, keys, positions, scale=source.scale, softcap=source.softcap,
            group="each" if by_query_head else "mean",
        )  # fmt: skip
        tokens, axis = length, f"step (the last {count} positions)"
    else:
        source.attention(0, layer)  # raises if the layer was not recorded
        weights = source.events[layer].attention[-count:].swapaxes(0, 1)  # [R, T, N]
        tokens, axis = source.prompt_length, "decode step"
        heads = source.geometry.n_kv_heads
        if by_query_head and len(weights) == heads < source.geometry.n_heads:
            row_name = "KV head"
        if not by_query_head:
            weights = weights.reshape(heads, -1, count, length).mean(1)
    about = (source.model, f"{tokens:,} tokens", f"layer {layer}")
    return Observed(weights, positions + 1, source.tokens, about, axis, row_name)


def one_head(operation: str, observed: Observed, head: int) -> NDArray[np.float32]:
    """Attention [T, N] of one row; raises InvalidInputError for a head out of range."""
    if not 0 <= head < len(observed.weights):
        raise InvalidInputError(f"{operation}: head", head, f"0 to {len(observed.weights) - 1}")
    return np.asarray(observed.weights[head], np.float32)


def importance_drift(
    source: Trace | Recording,
    layer: int | None = None,
    head: int = 0,
    *,
    tokens: Sequence[int] | None = None,
    steps: int | None = None,
    top: int = 64,
    recent: int = 64,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Ranks of a few tokens by exact attention over the decode steps, on a logarithmic axis with rank 1 at the top.

    As in ClusterKV (arXiv 2412.03213) fig. 3a. A token above the dotted line is among the `top` most important of its
    step. The title gives the mean share of these tokens that a later step has in common with the first step shown: what
    a method that selects only once would still have. Deviation: ranks are among the tokens more than `recent` before
    the first step, since recent tokens lose weight by distance alone and every method keeps them (`recent=0`: among all
    tokens that the first step can attend to).

    `source`: a recording, or a trace whose last positions serve as decode steps. `layer`: by default the first one that
    it has. `head` counts key/value heads; the
    weights of its query heads are averaged. `tokens`: positions of such tokens; by default the three whose ranks change
    most (`metrics.drifting_tokens`), which are extremes, not typical tokens. `steps`: how many of the last steps, by
    default 64 or all if there are fewer.

    Raises InvalidInputError for a layer, head, position, number of steps (at least 2), `recent` or `top` that does not
    fit.

    >>> from kvviz.plots.example import example_recording
    >>> importance_drift(example_recording(), 0, top=2, recent=0).data[0].name
    'rises: “b” (1)'
    """
    observed = observe("importance_drift", source, layer, steps)
    weights = one_head("importance_drift", observed, head)
    count, older = len(weights), int(observed.visible[0]) - recent
    if count < 2:
        raise InvalidInputError("importance_drift: steps", count, "2 or more")
    if recent < 0 or not 1 <= top <= older:
        got, wanted = f"top {top} with {recent} recent tokens", f"1 to {older}, the number of older tokens"
        raise InvalidInputError("importance_drift: top", got, wanted)
    ranks = metrics.token_ranks(weights[:, :older])
    chosen = _chosen(tokens, ranks, top)
    step_numbers = np.arange(count) + (source.steps - count if isinstance(source, Recording) else 0)
    figure = Figure()
    for index, (position, how) in enumerate(chosen.items()):
        name = f"{how}: " if how else ""
        figure.add_scatter(
            x=step_numbers, y=ranks[:, position] + 1, mode="lines+markers",
            name=f"{name}“{escape(observed.tokens[position])}” ({position:,})",
            line={"color": cluster_line(index, dark), "width": 1.5},
            marker={"symbol": _SYMBOLS[index % len(_SYMBOLS)], "size": 4},
            customdata=weights[:, position],
            hovertemplate="%{fullData.name}<br>step %{x}: rank %{y:,}, weight %{customdata:.2g}<extra></extra>",
        )  # fmt: skip
    edges = [step_numbers[0] - 0.5, step_numbers[-1] + 0.5]
    figure.add_scatter(
        x=edges, y=[top, top], mode="lines", name=f"top {top:,}", hoverinfo="name",
        line={"width": 1.5, "dash": "dot", "color": ink(dark).foreground},
    )  # fmt: skip
    shared = metrics.top_kept(ranks, top)[1:].mean()
    text = heading(title, [
        "Rank of tokens by step", *observed.about, f"KV head {head}", f"{count} steps",
        f"a later step shares {shared:.0%} of its top {top:,} with the first",
    ])  # fmt: skip
    figure.update_layout(template=template_name(dark), height=420, hovermode="closest")
    set_title(figure, text)
    figure.update_xaxes(title_text=observed.axis, range=edges)
    lowest = np.log10(max(ranks[:, list(chosen)].max() + 1, top))
    figure.update_yaxes(
        title_text="rank of the token by weight", type="log", dtick=1, tickformat=",", showgrid=True,
        range=[lowest + 0.15, -0.1],
    )  # fmt: skip
    return figure


def attention_distribution(
    source: Trace | Recording,
    layer: int | None = None,
    *,
    heads: Sequence[int] | None = None,
    steps: int | None = None,
    ranks: tuple[int, int] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """Attention weights in descending order, both axes logarithmic, with a power-law fit.

    As in PQCache (arXiv 2407.12820) fig. 6. Each thin line is one head: at every rank, the geometric mean over the
    steps of the weight at that rank. The thick line is the geometric mean of the heads. The dashed line is the power
    law fitted to it (`metrics.power_law`), with its exponent and R². The vertical lines mark the fewest tokens that
    hold 50% and 90% of the attention: the median over each head's steps, then over the heads, with the lowest and the
    highest head.

    `source`: a trace, with one line per query head and its last positions as decode steps; or a recording, with one
    line per row: if these are key/value heads (means over their group), the legend says so. `heads` selects some.
    `layer` and `steps` as for `importance_drift`. `ranks`: first and last rank of the fits, from 1, both included; by
    default all ranks that every step has, up to the first weight of 0.

    Raises InvalidInputError for a layer, head, number of steps or range of ranks that does not fit.

    >>> from kvviz.plots.example import example_recording
    >>> [trace.name for trace in attention_distribution(example_recording(), 0).data][:2]
    ['one query head (1)', 'geometric mean of the heads']
    """
    observed = observe("attention_distribution", source, layer, steps, by_query_head=True)
    picked = list(range(len(observed.weights))) if heads is None else list(heads)
    if not picked:
        raise InvalidInputError("attention_distribution: heads", "none", f"some of 0 to {len(observed.weights) - 1}")
    weights = np.stack([one_head("attention_distribution", observed, head) for head in picked])
    curves = _curves(metrics.sorted_mass(weights)[0][..., : observed.visible[0]])
    overall = np.exp(np.log(curves).mean(0))
    first, last = ranks or (1, len(overall))
    laws = [metrics.power_law(curve, first=first, last=last) for curve in [overall, *curves]]
    shown = np.unique(np.geomspace(1, len(overall), _MAX_RANKS).round().astype(np.int64))
    neutral, figure = ink(dark), Figure()
    exponents = sorted(law.exponent for law in laws[1:])
    exponent_range = f": exponents {exponents[0]:.2f} to {exponents[-1]:.2f}" if len(picked) > 1 else ""
    legend_name = f"one {observed.row_name} ({len(picked)}){exponent_range}"
    for head, curve, law in zip(picked, curves, laws[1:], strict=True):
        figure.add_scatter(
            x=shown, y=curve[shown - 1], mode="lines", name=legend_name, legendgroup="heads",
            showlegend=head == picked[0], line={"width": 1, "color": translucent(neutral.muted, 0.7)},
            hovertemplate=f"{observed.row_name} {head}: exponent {law.exponent:.2f}, R² {law.r_squared:.3f}"
            "<br>rank %{x:,}: weight %{y:.2g}<extra></extra>",
        )  # fmt: skip
    hover = "rank %{x:,}: weight %{y:.2g}<extra></extra>"
    figure.add_scatter(
        x=shown, y=overall[shown - 1], mode="lines", name="geometric mean of the heads", hovertemplate=hover,
        line={"width": 2.5, "color": cluster_line(2, dark)},
    )  # fmt: skip
    law, ends = laws[0], laws[0].at(np.array([first, last]))
    figure.add_scatter(
        x=[first, last], y=ends, mode="lines", hovertemplate=hover,
        name=f"power law: exponent {law.exponent:.2f}, R² {law.r_squared:.3f} (ranks {first:,} to {last:,})",
        line={"width": 1.5, "dash": "dash", "color": neutral.foreground},
    )  # fmt: skip
    lowest = min(float(curves.min()), float(ends[-1]))
    for share, dash in _SHARES.items():
        counts = np.median(metrics.tokens_for_mass(weights, share), axis=-1)  # [R]
        figure.add_scatter(
            x=[np.median(counts)] * 2, y=[lowest, 1], mode="lines", name=_holders(share, counts),
            line={"width": 1.2, "dash": dash, "color": cluster_line(0, dark)}, hoverinfo="name",
        )  # fmt: skip
    figure.update_layout(template=template_name(dark), height=460, hovermode="closest")
    set_title(figure, heading(title, ["Attention by rank", *observed.about, f"{weights.shape[1]} steps"]))
    figure.update_xaxes(
        title_text="rank of the token by weight", type="log", dtick=1, tickformat=",",
        range=[-0.06, np.log10(len(overall)) + 0.03],
    )  # fmt: skip
    decades = -np.log10(lowest)
    powers = range(0, int(decades) + 1, max(1, round(decades / 6)))
    figure.update_yaxes(
        title_text="attention weight", type="log", range=[-1.02 * decades, 0.1],
        tickvals=[10.0**-power for power in powers], ticktext=[power_of_ten(-power) for power in powers],
    )  # fmt: skip
    return figure


def _chosen(tokens: Sequence[int] | None, ranks: NDArray[np.int64], top: int) -> dict[int, str]:
    """How the rank of each token changes, by position; "" if the caller chose it. `ranks` [T, L] of candidates."""
    if tokens is None:
        if ranks.shape[1] < 3:
            raise InvalidInputError("importance_drift", f"{ranks.shape[1]} tokens to choose from", "3 or more")
        return {position: how for how, position in metrics.drifting_tokens(ranks, top).items()}
    chosen = [int(position) for position in tokens]
    if not chosen or min(chosen) < 0 or max(chosen) >= ranks.shape[1]:
        wanted = f"positions 0 to {ranks.shape[1] - 1}, before the recent tokens of the first step"
        raise InvalidInputError("importance_drift: tokens", chosen, wanted)
    return dict.fromkeys(chosen, "")


def _curves(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """Geometric mean over the steps at each rank, [R, N], cut before the first rank at which any weight is 0."""
    lowest = ordered.min((0, 1))
    stop = int(np.count_nonzero(lowest))  # weights descend, so zeros come last
    return np.asarray(np.exp(np.log(ordered[..., :stop]).mean(1)), np.float64)


def _holders(share: float, counts: NDArray[np.float64]) -> str:
    """How many tokens hold a share of the attention, as text."""
    middle, low, high = (
        f"{value:,.{int(value < 10)}f}".removesuffix(".0") for value in (np.median(counts), counts.min(), counts.max())
    )  # half a token, from a median of an even number, matters only below 10
    spread = f" (heads: {low} to {high})" if low != high else ""
    return f"{share:.0%} of the attention: {middle} token{'' if middle == '1' else 's'}{spread}"
