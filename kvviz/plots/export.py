"""Figures as files for print: vector PDF and SVG at a paper's width, PNG at 300 dpi or another resolution."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go

from ..errors import InvalidInputError, KVVizError, MissingDependencyError
from ..trace.storage import replacing
from .labels import title_pad, top_margin, wrap

WIDTHS = {"column": 3.3, "page": 7.0}  # inches
SUFFIXES = (".pdf", ".svg", ".png")
_PIXELS = 96  # CSS pixels per inch
_FONT_POINTS = 8
_SHRINK = 0.75  # from the 13-pixel type of a figure on a screen to 8 points on paper, which are 10.7 pixels


def save(
    fig: go.Figure,
    path: str | os.PathLike[str],
    width: Literal["column", "page"] | float = "column",
    height: float | None = None,
    dpi: int = 300,
) -> Path:
    """Write a figure to `path` (.pdf, .svg or .png) for print; returns the path.

    `width`: "column" (3.3 inches), "page" (7 inches), or inches. `height`: inches, by default in proportion to the
    height of `fig`. Type is 8 points; titles are wrapped to fit. PDF and SVG are vector graphics. A PDF embeds its
    fonts; an SVG names them (Arial or a font of the same widths), since plotly writes text as text. Only the cells of a
    heat map (`key_similarity`, `page_fragmentation`) are a bitmap: lossless, one pixel per cell, enlarged without
    smoothing, hence sharp at any size. A PNG has `dpi` dots per inch, 50 to 1,200: 300 for print, 150 for a page on a
    screen. Layers that serve only hovering are left out. The file is written completely or not at all, and `fig` is not
    changed.

    Raises InvalidInputError for another suffix, a size outside 0.5 to 100 inches or a `dpi` out of range;
    MissingDependencyError without kaleido; KVVizError if kaleido finds no Chromium or Chrome, or the browser fails.

    >>> save(go.Figure(), "figure.gif")
    Traceback (most recent call last):
    kvviz.errors.InvalidInputError: plots.save: suffix: got '.gif'; wanted one of .pdf, .svg, .png
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise InvalidInputError("plots.save: suffix", repr(path.suffix), f"one of {', '.join(SUFFIXES)}")
    inches = WIDTHS.get(width) if isinstance(width, str) else width
    wanted = f"{', '.join(WIDTHS)} or 0.5 to 100 inches"
    if inches is None or not 0.5 <= inches <= 100:
        raise InvalidInputError("plots.save: width", repr(width), wanted)
    if height is not None and not 0.5 <= height <= 100:
        raise InvalidInputError("plots.save: height", repr(height), wanted)
    if not 50 <= dpi <= 1200:
        raise InvalidInputError("plots.save: dpi", repr(dpi), "50 to 1,200 dots per inch")
    image = _render(_for_print(fig, inches, height), path.suffix.lower()[1:], dpi)
    with replacing(path) as partial:
        partial.write_bytes(image)
    return path


def _for_print(fig: go.Figure, inches: float, height: float | None) -> go.Figure:
    """A copy of the figure at its printed size: 8-point type, wrapped titles, no layers for hovering."""
    page = go.Figure(fig)
    page.data = [trace for trace in page.data if (trace.meta or {}) != {"role": "hover"}]
    type_size = _FONT_POINTS * _PIXELS / 72
    letters = int(inches * _PIXELS / (0.5 * type_size))  # a letter is about half as wide as its type size
    text = wrap(page.layout.title.text or "", letters)
    panel_titles = any(note.yanchor == "bottom" and note.y == 1 for note in page.layout.annotations)
    # A title of more than two lines makes the figure higher, so that the plot below keeps its height.
    more_lines = max(top_margin(text, type_size) - top_margin("<br>", type_size), 0.0)
    page.update_layout(
        width=inches * _PIXELS, autosize=False, font_size=type_size,
        height=height * _PIXELS if height else (page.layout.height or 420) * _SHRINK + more_lines,
        title={"text": text, "font_size": type_size, "pad": title_pad(text, type_size), "x": 0, "xref": "container"},
        margin={"l": 4, "r": 6, "t": top_margin(text, type_size, panel_titles), "b": 4},
    )  # fmt: skip
    for update in (page.update_xaxes, page.update_yaxes):
        update(title={"font_size": type_size, "standoff": 4})
    for trace in page.data:
        if "marker" in trace and trace.marker.showscale:
            trace.marker.colorbar.title.font.size = type_size
    page.update_coloraxes(colorbar_title_font_size=type_size)
    return page


def _render(fig: go.Figure, image_format: str, dpi: int) -> bytes:
    operation = f"plots.save as {image_format}"
    try:
        import kaleido
        from kaleido.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError
    except ImportError as error:
        raise MissingDependencyError(operation, "kaleido", "export") from error
    options = {
        "format": image_format, "width": fig.layout.width, "height": fig.layout.height,
        "scale": dpi / _PIXELS if image_format == "png" else 1,
    }  # fmt: skip
    try:
        with warnings.catch_warnings():  # kaleido warns that a running server keeps its options
            warnings.filterwarnings("ignore", message=".*kopts.*", category=UserWarning)
            image: Any = kaleido.calc_fig_sync(fig.to_dict(), opts=options, kopts={"mathjax": False})  # else from a CDN
    except ChromeNotFoundError as error:
        wanted = "Chromium or Chrome (BROWSER_PATH, or on the PATH): apt-get install chromium, or kaleido_get_chrome"
        raise KVVizError(operation, "no browser that kaleido can drive", wanted) from error
    except (BrowserFailedError, BrowserClosedError) as error:
        raise KVVizError(operation, f"a browser that failed ({error})", "a Chromium or Chrome that works") from error
    return bytes(image)
