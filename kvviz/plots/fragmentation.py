"""How the important tokens lie on pages of consecutive tokens, and what fetching whole pages wastes."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from .. import metrics
from ..errors import InvalidInputError
from ..metrics import PageFragmentation
from ..trace import Recording, Trace
from .importance import observe, one_head
from .labels import heading, set_title
from .theme import LIGHT, MAP, attention_scale, ink, template_name

_PAGES, _ROWS = 4, 16  # of the map, by default: a token is then 3 pixels wide in a paper's column
_MAX_COLUMNS = 256
_MAP_HEIGHT, _BARS_HEIGHT, _GAP, _BELOW = 200, 150, 84, 84  # pixels


def page_fragmentation(
    source: Trace | Recording,
    layer: int,
    head: int = 0,
    *,
    top: int = 64,
    page_size: int = 16,
    sinks: int = 16,
    recent: int = 64,
    steps: int | None = None,
    pages: tuple[int, int] | None = None,
    title: str | None = None,
    dark: bool = False,
) -> go.Figure:
    """A map of exact attention cut into pages, important tokens marked, over a histogram of important tokens a page.

    As in ClusterKV (arXiv 2412.03213) fig. 3b. The important tokens of a step are the `top` with the largest weight
    between the first `sinks` and the last `recent` tokens, which every method attends without choosing (`sinks=0,
    recent=0`: of all tokens). The histogram counts every page that holds one, over all steps; the diamonds are what as
    many tokens, drawn at random, would give. The title says how much of those pages is wasted.

    `source`: a recording, or a trace whose last positions play the decode steps. `head` counts key/value heads, the
    weights of whose query heads are averaged. `steps`: the last so many, by default 64 or as many as there are; the map
    shows the last 16 of them. `pages`: the half-open range of pages that the map shows, by default 4 typical ones in a
    row: those whose important tokens a page come nearest to the mean of all.

    Raises InvalidInputError for a layer, head, page size, range or number of tokens or steps that does not fit.

    >>> from kvviz.plots.example import example_recording
    >>> figure = page_fragmentation(example_recording(), 0, top=2, page_size=2, sinks=0, recent=0)
    >>> figure.layout.title.text.split(" · ")[-1]
    '25% of their tokens wasted'
    """
    seen = observe("page_fragmentation", source, layer, steps)
    weights = one_head("page_fragmentation", seen, head)
    fewest = int(seen.visible[0]) - sinks - recent
    if min(sinks, recent) < 0 or not 1 <= top <= fewest:
        got = f"{top} between {sinks} sinks and {recent} recent tokens"
        raise InvalidInputError("page_fragmentation: top", got, f"1 to the tokens between them, here {fewest}")
    place = np.arange(weights.shape[1])
    between = (place >= sinks) & (place < seen.visible[:, None] - recent)
    important = metrics.top_tokens(np.where(between, weights, -1.0), top)  # [T, top]
    spread = metrics.page_fragmentation(important, weights.shape[1], page_size)
    window = _window(pages, spread)
    figure = make_subplots(2, 1, row_heights=[_MAP_HEIGHT, _BARS_HEIGHT], vertical_spacing=_gap())
    first = (source.steps if isinstance(source, Recording) else len(weights)) - min(_ROWS, len(weights))
    for trace in _map(weights[-_ROWS:], important[-_ROWS:], window, page_size, first):
        figure.add_trace(trace, 1, 1)
    for trace in _histogram(spread, top, int(between.sum(-1).mean()), page_size, dark):
        figure.add_trace(trace, 2, 1)
    for edge in range(window[0], window[1] + 1):
        figure.add_vline(x=edge * page_size - 0.5, line={"width": 1.5, "color": ink(dark).background}, row=1, col=1)
    mean = spread.tokens_per_page.mean()
    panels = (
        f"pages {window[0]:,} to {window[1] - 1:,}" + (", typical ones" if pages is None else ""),
        f"on average {mean:.1f} of a page's {page_size} tokens",
    )
    for row, text in enumerate(panels, start=1):
        figure.add_annotation(
            text=text, showarrow=False, borderpad=0, x=0, y=1, xref="x domain", yref="y domain", xanchor="left",
            yanchor="bottom", row=row, col=1,
        )  # fmt: skip
    text = heading(title, [
        "Important tokens by page", *seen.about,
        f"KV head {head}", f"{len(weights)} steps", f"top {top:,} tokens lie on {spread.pages.mean():.0f} "
        f"pages where {spread.least.mean():.0f} would do", f"{spread.wasted.mean():.0%} of their tokens wasted",
    ])  # fmt: skip
    set_title(figure, text, panel_titles=True)
    height = figure.layout.margin.t + _MAP_HEIGHT + _GAP + _BARS_HEIGHT + _BELOW
    figure.update_layout(template=template_name(dark), height=height, bargap=0.15)
    figure.update_xaxes(
        title_text="position", showgrid=False, tickformat=",", row=1, col=1,
        range=[window[0] * page_size - 0.5, window[1] * page_size - 0.5],
    )  # fmt: skip
    figure.update_yaxes(title_text=seen.axis.split(" (")[0], showgrid=False, nticks=5, row=1)
    figure.update_yaxes(range=[first + min(_ROWS, len(weights)) - 0.5, first - 0.5], row=1)
    figure.update_xaxes(
        title_text="important tokens in a page that holds one", range=[0.4, page_size + 0.6], tick0=1,
        dtick=max(1, round(page_size / 8)), row=2, col=1,
    )  # fmt: skip
    figure.update_yaxes(title_text="share of pages", tickformat=".0%", rangemode="tozero", row=2, col=1)
    return figure


def _gap() -> float:
    return _GAP / (_MAP_HEIGHT + _GAP + _BARS_HEIGHT)


def _window(pages: tuple[int, int] | None, spread: PageFragmentation) -> tuple[int, int]:
    """The pages of the map; by default consecutive ones with a typical number of important tokens a page."""
    counts, n_pages = spread.counts[-_ROWS:], spread.counts.shape[1]  # of the steps that the map shows
    most = max(1, _MAX_COLUMNS // spread.page_size)
    if pages is None:
        run = np.ones(min(_PAGES, n_pages, most), np.int64)
        tokens, holding, held = (
            np.convolve(of_page, run, "valid")  # of every run of pages
            for of_page in (counts.sum(0), (counts > 0).sum(0), counts.any(0).astype(np.int64))
        )
        distance = np.abs(tokens / np.maximum(holding, 1) - spread.tokens_per_page.mean())
        start = int(np.where(held == held.max(), distance, np.inf).argmin())  # no page without any, where possible
        return start, start + len(run)
    start, stop = pages
    if not 0 <= start < stop <= n_pages or stop - start > most:
        wanted = f"(start, stop) with 0 <= start < stop <= {n_pages}, at most {most} pages"
        raise InvalidInputError("page_fragmentation: pages", pages, wanted)
    return start, stop


def _map(
    weights: NDArray[np.float32], important: NDArray[np.int64], window: tuple[int, int], page_size: int, first: int
) -> list[Any]:  # fmt: skip
    """Attention [T, N] on the pages of the window, and a dot on every important token; the same in both themes."""
    start, stop = window[0] * page_size, min(window[1] * page_size, weights.shape[1])
    shown = weights[:, start:stop]
    decades = int(np.clip(np.ceil(-np.log10(np.quantile(shown[shown > 0], 0.05))), 2, 8)) if shown.any() else 2
    level = np.where(shown > 0, np.log10(np.maximum(shown, 10.0**-decades)), np.nan)
    largest = np.nanmax(level, initial=1 - decades)
    scale = attention_scale(decades) | {"cmax": largest}
    middle = 1 - _MAP_HEIGHT / (_MAP_HEIGHT + _GAP + _BARS_HEIGHT) / 2
    scale["colorbar"] |= {"len": 2 * (1 - middle), "y": middle, "yanchor": "middle", "title": {"text": "weight"}}
    row, column = np.nonzero(metrics.member_mask(important, weights.shape[1])[:, start:stop])
    heat = go.Heatmap(
        x=np.arange(start, stop), y=first + np.arange(len(shown)), z=level.astype(np.float32), colorscale=MAP,
        zmin=-decades, zmax=largest, showscale=False, customdata=shown, hoverongaps=False,
        hovertemplate="step %{y} · position %{x:,}<br>attention %{customdata:.2g}<extra></extra>",
    )  # fmt: skip
    dots = go.Scatter(
        x=start + column, y=first + row, mode="markers", name="important token", hoverinfo="skip",
        marker={"size": 4, "color": LIGHT.foreground, "line": {"width": 0.6, "color": LIGHT.background}},
    )  # fmt: skip
    bar = go.Scatter(
        x=[None], y=[None], mode="markers", showlegend=False, hoverinfo="skip",
        marker={"color": [0], "showscale": True, **scale},
    )  # fmt: skip
    return [heat, dots, bar]


def _histogram(spread: PageFragmentation, top: int, length: int, page_size: int, dark: bool) -> list[Any]:
    """Share of the pages that hold 1, 2 … important tokens, and what chance would give."""
    held = spread.tokens_per_page
    counts = np.arange(1, page_size + 1)
    found = np.bincount(held, minlength=page_size + 1)[1:] / len(held)
    hover = "%{x} important of " + str(page_size) + ": %{y:.1%} of the pages<extra></extra>"
    bars = go.Bar(
        x=counts, y=found, marker={"color": ink(dark).muted}, showlegend=False, hovertemplate=hover
    )  # fmt: skip
    if page_size > length:
        return [bars]
    expected = metrics.random_page_counts(top, length, page_size)
    chance = go.Scatter(
        x=counts, y=np.where(expected >= 1e-3, expected, np.nan), mode="markers",
        name="placed at random", hovertemplate=hover,
        marker={"symbol": "diamond-open", "size": 6, "color": ink(dark).foreground},
    )  # fmt: skip
    return [bars, chance]
