"""Page fragmentation: how important tokens are spread over pages, and what fetching whole pages wastes."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from .. import metrics
from ..errors import InvalidInputError
from ..metrics import PageFragmentation
from ..trace import Recording, Trace
from .importance_curves import observe, one_head
from .labels import heading, set_title
from .panels import ABOVE, stack
from .theme import LIGHT, MAP, attention_scale, color_bar_entry, ink, template_name

_PAGES, _ROWS = 4, 16  # of the map by default, so that a token is 3 pixels wide in a paper's column
_MAX_COLUMNS = 256
_MAP_HEIGHT, _BARS_HEIGHT, _GAP, _BELOW = 200, 150, 84, 84  # pixels


def page_fragmentation(
    source: Trace | Recording,
    layer: int | None = None,
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
    """A map of exact attention on pages, with important tokens marked, above a histogram of important tokens per page.

    As in ClusterKV (arXiv 2412.03213) fig. 3b. The important tokens of a step are the `top` by weight, not counting
    the first `sinks` and the last `recent` tokens, which every method attends to anyway (`sinks=0, recent=0`: of all
    tokens). The histogram counts all pages with an important token, over all steps; the diamonds show what is expected
    if as many tokens are drawn at random. The title gives the share of those pages that is wasted.

    `source`, `layer`, `head` and `steps` as for `importance_drift`; the map shows the last 16 of the steps. `pages`:
    the half-open range of pages in the map, by default 4 consecutive ones with a typical number of important tokens per
    page: the nearest to the mean of all pages.

    Raises InvalidInputError for a layer, head, page size, range or number of tokens or steps that does not fit.

    >>> from kvviz.plots.example import example_recording
    >>> figure = page_fragmentation(example_recording(), 0, top=2, page_size=2, sinks=0, recent=0)
    >>> figure.layout.title.text.split(" · ")[-1]
    '25% of their tokens wasted'
    """
    observed = observe("page_fragmentation", source, layer, steps)
    weights = one_head("page_fragmentation", observed, head)
    candidates = int(observed.visible[0]) - sinks - recent
    if min(sinks, recent) < 0 or not 1 <= top <= candidates:
        got = f"{top} between {sinks} sinks and {recent} recent tokens"
        raise InvalidInputError("page_fragmentation: top", got, f"1 to {candidates}, the number of tokens between them")
    positions = np.arange(weights.shape[1])
    between = (positions >= sinks) & (positions < observed.visible[:, None] - recent)
    important = metrics.top_tokens(np.where(between, weights, -1.0), top)  # [T, top]
    fragmentation = metrics.page_fragmentation(important, weights.shape[1], page_size)
    window = _window(pages, fragmentation)
    figure, inside = stack([_MAP_HEIGHT, _BARS_HEIGHT], _GAP)
    last = source.steps if isinstance(source, Recording) else len(weights)
    first = last - min(_ROWS, len(weights))
    figure.add_traces(_map(weights[-_ROWS:], important[-_ROWS:], window, page_size, first), rows=1, cols=1)
    bars = _histogram(fragmentation, top, int(between.sum(-1).mean()), page_size, dark)
    figure.add_traces(bars, rows=2, cols=1)
    for edge in range(window[0], window[1] + 1):
        figure.add_vline(x=edge * page_size - 0.5, line={"width": 1.5, "color": ink(dark).background}, row=1, col=1)
    typical = ", typical ones" if pages is None else ""
    figure.add_annotation(**ABOVE, text=f"pages {window[0]:,} to {window[1] - 1:,}{typical}", row=1, col=1)
    average = f"on average {fragmentation.tokens_per_page.mean():.1f} of a page's {page_size} tokens"
    figure.add_annotation(**ABOVE, text=average, row=2, col=1)
    text = heading(title, [
        "Important tokens by page", *observed.about, f"KV head {head}", f"{len(weights)} steps",
        f"top {top:,} tokens on {fragmentation.pages.mean():.0f} pages, {fragmentation.least.mean():.0f} would suffice",
        f"{fragmentation.wasted.mean():.0%} of their tokens wasted",
    ])  # fmt: skip
    set_title(figure, text, panel_titles=True)
    figure.update_layout(template=template_name(dark), height=figure.layout.margin.t + inside + _BELOW, bargap=0.15)
    figure.update_xaxes(
        title_text="position", showgrid=False, tickformat=",", row=1, col=1,
        range=[window[0] * page_size - 0.5, window[1] * page_size - 0.5],
    )  # fmt: skip
    step_axis = {"title_text": observed.axis.split(" (")[0], "showgrid": False, "nticks": 5}
    figure.update_yaxes(**step_axis, range=[last - 0.5, first - 0.5], row=1)
    figure.update_xaxes(
        title_text="important tokens on a page (at least one)", range=[0.4, page_size + 0.6], tick0=1,
        dtick=max(1, round(page_size / 8)), row=2, col=1,
    )  # fmt: skip
    figure.update_yaxes(title_text="share of pages", tickformat=".0%", rangemode="tozero", row=2, col=1)
    return figure


def _window(pages: tuple[int, int] | None, fragmentation: PageFragmentation) -> tuple[int, int]:
    """The pages of the map; by default consecutive ones with a typical number of important tokens per page."""
    counts, n_pages = fragmentation.counts[-_ROWS:], fragmentation.counts.shape[1]  # of the steps in the map
    most = max(1, _MAX_COLUMNS // fragmentation.page_size)
    if pages is None:
        run = np.ones(min(_PAGES, n_pages, most), np.int64)
        tokens, occurrences, occupied = (
            np.convolve(per_page, run, "valid")  # sums over every run of pages
            for per_page in (counts.sum(0), (counts > 0).sum(0), counts.any(0).astype(np.int64))
        )
        distance = np.abs(tokens / np.maximum(occurrences, 1) - fragmentation.tokens_per_page.mean())
        start = int(np.where(occupied == occupied.max(), distance, np.inf).argmin())  # as few empty pages as possible
        return start, start + len(run)
    start, stop = pages
    if not 0 <= start < stop <= n_pages or stop - start > most:
        wanted = f"(start, stop) with 0 <= start < stop <= {n_pages}, at most {most} pages"
        raise InvalidInputError("page_fragmentation: pages", pages, wanted)
    return start, stop


def _map(
    weights: NDArray[np.float32], important: NDArray[np.int64], window: tuple[int, int], page_size: int, first: int
) -> list[Any]:
    """Attention [T, N] on the pages of the window, with a dot on every important token; the same in both themes."""
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
    return [heat, dots, color_bar_entry(scale)]


def _histogram(fragmentation: PageFragmentation, top: int, length: int, page_size: int, dark: bool) -> list[Any]:
    """Share of the pages that hold 1, 2 … important tokens, and the shares expected by chance."""
    per_page = fragmentation.tokens_per_page
    counts = np.arange(1, page_size + 1)
    shares = np.bincount(per_page, minlength=page_size + 1)[1:] / len(per_page)
    hover = "%{x} important of " + str(page_size) + ": %{y:.1%} of the pages<extra></extra>"
    bars = go.Bar(x=counts, y=shares, marker={"color": ink(dark).muted}, showlegend=False, hovertemplate=hover)
    if page_size > length:
        return [bars]
    expected = metrics.random_page_counts(top, length, page_size)
    chance = go.Scatter(
        x=counts, y=np.where(expected >= 1e-3, expected, np.nan), mode="markers", name="placed at random",
        hovertemplate=hover, marker={"symbol": "diamond-open", "size": 6, "color": ink(dark).foreground},
    )  # fmt: skip
    return [bars, chance]
