"""Figures as files for print: vector PDF and SVG at a paper's width, PNG at 300 dpi or another resolution."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go

from ..errors import InvalidInputError, KVVizError, MissingDependencyError
from ..trace.storage import replacing
from .dark_page import dark_drawing
from .print_layout import PIXELS, for_print

WIDTHS = {"column": 3.3, "page": 7.0}  # inches
SUFFIXES = (".pdf", ".svg", ".png")


def save(
    fig: go.Figure,
    path: str | os.PathLike[str],
    width: Literal["column", "page"] | float = "column",
    height: float | None = None,
    dpi: int = 300,
    *,
    title: bool = True,
    names: Literal["registry", "paper"] | Mapping[str, str] = "registry",
    font: str | None = None,
) -> Path:
    """Write a figure to `path` (.pdf, .svg or .png) for print; returns the path.

    `width`: "column" (3.3 inches), "page" (7 inches), or inches. `height`: inches, by default in proportion to the
    height of `fig`, and higher for a title or a legend of many lines. Type is 8 points. Titles, names in the legend and
    titles of axes are wrapped so that they are inside the figure, whichever fonts the machine has. PDF and SVG are
    vector graphics. A PDF embeds its fonts; an SVG names them, since plotly writes text as text. Only the cells of a
    heat map (`key_similarity`, `page_fragmentation`) are a bitmap: lossless, one pixel per cell, enlarged without
    smoothing, hence sharp at any size. A PNG has `dpi` dots per inch, 50 to 1,200: 300 for print, 150 for a page on a
    screen. Layers that serve only hovering are left out. A kaleido server that runs already is used;
    start it with `browser_page()`. The file is written completely or not at all, and `fig` is not
    changed.

    For a paper, which has captions: `title=False` leaves the title out, and the figure is as much lower. `names`:
    "registry" writes methods as they are typed (clusterkv), "paper" as their papers do (ClusterKV); a mapping {registry
    name: name in print} does so too, with its own names first. `font`: by default a sans-serif one like Arial; "serif"
    is one like Times; or the name of a font that the machine has, such as "Libertinus Serif".

    Raises InvalidInputError for another suffix, a size outside 0.5 to 100 inches, a `dpi` out of range, an empty font
    or `names` that are no texts; UnknownNameError for another word as `names`;
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
    if font is not None and not (isinstance(font, str) and font.strip()):
        raise InvalidInputError("plots.save: font", repr(font), 'None, "serif", or the name of a font')
    page = for_print(fig, inches, height, title, names, font)
    image = _render(page, path.suffix.lower()[1:], dpi)
    with replacing(path) as partial:
        partial.write_bytes(image)
    return path


def save_dark(fig: go.Figure, path: str | os.PathLike[str], width: Literal["column", "page"] = "column") -> Path:
    """Write a figure of the light theme to `path` (.svg) as dark pages show it; returns the path.

    It is laid out as by `save`, for a page that shows one file in the light theme and another in the dark one.
    """
    page, path = for_print(fig, WIDTHS[width]), Path(path)
    drawing = dark_drawing(_render(page, "svg", 0).decode("utf-8"), page)
    with replacing(path) as partial:
        partial.write_text(drawing, encoding="utf-8")
    return path


def browser_page() -> dict[str, Any]:
    """Arguments of `kaleido.start_sync_server` for many files from one browser, as `save` uses them for one.

    Without them, a PDF has a border of 0.1 inch, and the figure inside is as much smaller. They also leave out MathJax,
    which kaleido would fetch. Raises ImportError without kaleido.
    """
    from kaleido import PageGenerator

    page = PageGenerator(mathjax=False)
    page.header = page.header.replace("<head>", "<head><style>@page { margin: 0 } body { margin: 0 }</style>", 1)
    return {"page_generator": page}


def _render(fig: go.Figure, image_format: str, dpi: int) -> bytes:
    operation = f"plots.save as {image_format}"
    try:
        import kaleido
        from kaleido.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError
    except ImportError as error:
        raise MissingDependencyError(operation, "kaleido", "export") from error
    options = {
        "format": image_format, "width": fig.layout.width, "height": fig.layout.height,
        "scale": dpi / PIXELS if image_format == "png" else 1,
    }  # fmt: skip
    try:
        with warnings.catch_warnings():  # kaleido warns that a running server keeps its options
            warnings.filterwarnings("ignore", message=".*kopts.*", category=UserWarning)
            image: Any = kaleido.calc_fig_sync(fig.to_dict(), opts=options, kopts=browser_page())
    except ChromeNotFoundError as error:
        wanted = "Chromium or Chrome (BROWSER_PATH, or on the PATH): apt-get install chromium, or kaleido_get_chrome"
        raise KVVizError(operation, "no browser that kaleido can drive", wanted) from error
    except (BrowserFailedError, BrowserClosedError) as error:
        raise KVVizError(operation, f"a browser that failed ({error})", "a Chromium or Chrome that works") from error
    return bytes(image)
