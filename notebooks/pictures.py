"""Pictures of a notebook's figures and widgets, for viewers that run no scripts.

They need what `make setup` brings (kaleido, playwright) and a Chromium on the machine.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path

import nbformat
import plotly.io
from playwright.sync_api import sync_playwright

FIGURE_WIDTH, WIDGET_WIDTH = 760, 960  # CSS pixels
DRAWN_MS = 120_000  # until a page's first token is painted, on a busy machine


def add(outputs: list[nbformat.NotebookNode], figure_type: str, pages: Mapping[int, Path]) -> list[bytes]:
    """Put a PNG in place of each plotly figure and beside each widget among the outputs; returns the widgets' PNGs.

    JupyterLab shows the PNG of a saved notebook even where it has the figure too, which can take half a megabyte.
    `pages` holds the page without a kernel of the output at each index that is a widget.
    """
    taken = []
    for index, output in enumerate(outputs):
        picture = None
        if figure_type in output.data:
            figure = output.data.pop(figure_type)
            figure.pop("config", None)
            picture = plotly.io.to_image(figure, format="png", width=FIGURE_WIDTH, validate=False)
        elif index in pages:
            picture = of_page(pages[index])
            taken.append(picture)
        if picture:
            output.data["image/png"] = base64.b64encode(picture).decode()
    return taken


def of_page(path: Path, scheme: str = "light") -> bytes:
    """PNG of a widget's page once its text is painted, in a "light" or "dark" browser; its script's errors raise."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": WIDGET_WIDTH, "height": 800}, color_scheme=scheme)
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.locator("#kvviz-root .kv-attended[data-position]").first.wait_for(state="attached", timeout=DRAWN_MS)
        page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        if errors:
            raise RuntimeError(f"{path.name} fails in the browser: {errors[0]}")
        picture = page.locator("#kvviz-root").screenshot()
        browser.close()
    return picture
