"""Why a method missed: what each head brings back, what each stage lost, and the tokens that the answer needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from ..errors import InvalidInputError, UnknownNameError
from ..trace.diagnosis import STAGES, Diagnosis
from ..trace.outcomes import EVERYTHING
from .labels import escape, heading, set_title
from .panels import tiles
from .theme import MAP, color_bar, ink, style_of_diagnosis, template_name, translucent
from .themed_figure import Figure

_LINE = 72  # characters
_COST = 4  # characters that a token's cost needs
_AROUND = 16  # tokens of text before and after the evidence
_ROW = 44  # pixels of a line of text with its costs
_WRITTEN = 0.3  # a cell shows its number if it brings back at least so much of what the best one does


def loss_by_head(
    diagnosis: Diagnosis, stage: str = EVERYTHING, *, title: str | None = None, dark: bool = False
) -> go.Figure:
    """A map of layers × KV heads: the log-probability that comes back when one head is restored, in cividis.

    `stage`: "all" lets the head attend to the oracle's tokens; a stage of the method makes that stage alone exact, and
    was tried for some heads only. Cells with large values show their number; the heads of `Diagnosis.smallest`, whose
    restoration brings the answer back, are framed. Layers in which the method does not choose stay empty.

    Raises UnknownNameError for an unknown stage, and InvalidInputError for one that was tried for no head.

    >>> from kvviz.plots.example import example_diagnosis
    >>> loss_by_head(example_diagnosis()).data[0].marker.color.tolist()
    [0.25, 1.5]
    """
    if stage not in STAGES:
        raise UnknownNameError("loss_by_head: stage", str(stage), STAGES)
    values = diagnosis.head_map(stage).T  # [heads, layers]
    if np.isnan(values).all():
        tried = ", ".join(repr(name) for name in STAGES if not np.isnan(diagnosis.head_map(name)).all())
        raise InvalidInputError("loss_by_head: stage", f"{stage!r}, which was tried for no head", tried)
    largest = float(np.nanmax(np.abs(values)))
    least = max(_WRITTEN * largest, 0.05)
    text = [[f"{value:.1f}" if abs(value) >= least else "" for value in row] for row in values]
    hover = "layer %{x}, KV head %{customdata[0]}: %{marker.color:+.2f} nats come back"
    figure = Figure(tiles(values, hover, dark, text).update(textfont_size=10))
    smallest = diagnosis.smallest or ()
    for layer, head in smallest:
        corners = {"x0": layer - 0.5, "x1": layer + 0.5, "y0": head - 0.5, "y1": head + 0.5}
        for width, color in ((5, ink(dark).background), (2, ink(dark).foreground)):  # seen on light and dark cells
            figure.add_shape(type="rect", **corners, line={"width": width, "color": color})
    framed = f"framed: {len(smallest)} of {np.isfinite(values).sum()} heads bring the answer back" if smallest else ""
    what = "each head restored" if stage == EVERYTHING else f"{stage} exact in each head"
    parts = [f"Log-probability that comes back, {what}", diagnosis.description, framed]
    figure.update_layout(
        template=template_name(dark), height=190 + 26 * len(values),
        coloraxis={"colorscale": MAP, "colorbar": color_bar("nats") | {"len": 1.2}},
    )  # fmt: skip
    layers, heads = values.shape[1], values.shape[0]
    figure.update_xaxes(title_text="layer", range=[-0.5, layers - 0.5], showgrid=False, dtick=max(layers // 10, 1))
    figure.update_yaxes(title_text="KV head", range=[heads - 0.5, -0.5], showgrid=False, dtick=1)
    set_title(figure, heading(title, parts))
    return figure


def loss_stages(diagnosis: Diagnosis, *, title: str | None = None, dark: bool = False) -> go.Figure:
    """A waterfall from full attention's log-probability of the answer to the method's, by the stage that lost it.

    The bars are the differences of `Diagnosis.waterfall`, in which one more stage is exact in each row, so that they
    add up. The first is what the budget costs: the oracle attends to as many tokens as the method. A bar may rise:
    then the exact stage is worse for this answer.

    >>> from kvviz.plots.example import example_diagnosis
    >>> [round(value, 2) for value in loss_stages(example_diagnosis()).data[0].y]
    [-0.1, -0.15, -2.25, -2.5, -5.0]
    """
    causes = diagnosis.causes
    names = ["full attention", *(name for name, _ in causes), diagnosis.title]
    bars = [diagnosis.full.total, *(change for _, change in causes), diagnosis.method.total]
    measures = ["absolute", *["relative"] * (len(bars) - 2), "total"]
    color = style_of_diagnosis(diagnosis, dark)["color"]
    figure = Figure(
        go.Waterfall(
            x=names, y=bars, measure=measures, text=[_number(value, 2) for value in bars], textposition="outside",
            textfont={"size": 11}, constraintext="none", cliponaxis=False,
            connector={"line": {"color": ink(dark).muted, "width": 1, "dash": "dot"}},
            totals={"marker": {"color": color}}, decreasing={"marker": {"color": translucent(color, 0.55)}},
            increasing={"marker": {"color": ink(dark).muted}},
            hovertemplate="%{x}: %{text} nats<extra></extra>",
        )
    )  # fmt: skip
    parts = [f"Log-probability of {diagnosis.answer!r}", diagnosis.description]
    figure.update_layout(template=template_name(dark), height=380, showlegend=False)
    figure.update_yaxes(title_text="log-probability (nats)")
    set_title(figure, heading(title, parts))
    return figure


def evidence(diagnosis: Diagnosis, *, title: str | None = None, dark: bool = False) -> go.Figure:
    """The text around the tokens that the answer needs, tinted and numbered by what full attention loses without each.

    Raises InvalidInputError for a diagnosis that found no evidence.

    >>> from kvviz.plots.example import example_diagnosis
    >>> evidence(example_diagnosis()).data[0].marker.color.tolist()
    [2.0]
    """
    costs = dict(zip(diagnosis.evidence["position"], diagnosis.evidence["logprob"], strict=True))
    if not costs:
        raise InvalidInputError("evidence", "a diagnosis without evidence", "one with a token that the answer needs")
    words = _laid_out(diagnosis.tokens[: diagnosis.prompt_length], sorted(costs))
    tinted = [word for word in words if word.position in costs]
    lines = max(word.line for word in words) + 1
    values = np.array([costs[word.position] for word in tinted])
    figure = Figure(
        go.Bar(
            x=[word.column + word.width / 2 for word in tinted], y=[0.62] * len(tinted),
            base=[word.line - 0.31 for word in tinted], width=[word.width for word in tinted],
            marker={"color": values, "coloraxis": "coloraxis", "opacity": 0.55}, showlegend=False,
            hovertemplate="%{text}<extra></extra>", textposition="none",
            text=[
                f"{escape(word.text)}, position {word.position:,}: {costs[word.position]:.2f} nats" for word in tinted
            ],
        )
    )  # fmt: skip
    mono = "DejaVu Sans Mono, Menlo, Consolas, Liberation Mono, monospace"
    figure.add_scatter(
        x=[word.column + word.width / 2 for word in words], y=[word.line for word in words], mode="text",
        text=[escape(word.text) for word in words], textfont={"family": mono}, hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    figure.add_scatter(
        x=[word.column + word.width / 2 for word in tinted], y=[word.line + 0.45 for word in tinted], mode="text",
        text=[f"{costs[word.position]:.1f}" for word in tinted], textfont={"size": 10, "color": ink(dark).muted},
        hoverinfo="skip", showlegend=False,
    )  # fmt: skip
    parts = [f"What {diagnosis.answer!r} needs: nats lost without each token", diagnosis.model]
    figure.update_layout(
        template=template_name(dark), height=90 + _ROW * lines,
        coloraxis={"colorscale": MAP, "cmin": 0, "colorbar": color_bar("nats")},
    )  # fmt: skip
    figure.update_xaxes(visible=False, range=[0, _LINE])
    figure.update_yaxes(visible=False, range=[lines - 0.4, -0.6])
    set_title(figure, heading(title, parts))
    return figure


class _Word(NamedTuple):
    """A token of the text, and its place in it; position -1 for what was left out."""

    text: str
    position: int
    line: int
    column: int
    width: int


def _laid_out(tokens: list[str], wanted: list[int]) -> list[_Word]:
    """The tokens around those wanted, in lines; "…" for what is left out."""
    needed = set(wanted)
    shown = sorted({
        place for position in wanted
        for place in range(max(position - _AROUND, 0), min(position + _AROUND + 1, len(tokens)))
    })  # fmt: skip
    texts: list[tuple[str, int]] = []
    previous = -1
    for place in shown:
        if place != previous + 1:
            texts.append((" … ", -1))
        texts.append((tokens[place], place))
        previous = place
    if previous < len(tokens) - 1:
        texts.append((" …", -1))
    words: list[_Word] = []
    line = column = 0
    for text, place in texts:
        width = max(len(text), _COST if place in needed else 1)
        if column + width > _LINE and column:
            line, column = line + 1, 0
        words.append(_Word(text, place, line, column, width))
        column += width
    return words


def _number(value: float, decimals: int) -> str:
    """The number with its sign, 0 without."""
    text = f"{abs(value):.{decimals}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else '−'}{text}"
