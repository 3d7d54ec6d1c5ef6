"""Pictures of a notebook's figures and widgets, for viewers that do not run scripts.

This needs kaleido and playwright, which `make setup` installs, and a Chromium on the machine.
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
DRAWN_MS = 120_000  # until a page paints its first token, on a busy machine


def add(outputs: list[nbformat.NotebookNode], figure_type: str, pages: Mapping[int, Path]) -> list[bytes]:
    """Replace each plotly figure among the outputs by a PNG, and add one to each widget; returns the widgets' PNGs.

    JupyterLab shows the PNG of a saved notebook even if the figure is there too, which can take half a megabyte.
    `pages` maps the index of a widget's output to its page without a kernel.
    """
    widget_pictures = []
    for index, output in enumerate(outputs):
        picture = None
        if figure_type in output.data:
            figure = output.data.pop(figure_type)
            figure.pop("config", None)
            picture = plotly.io.to_image(figure, format="png", width=FIGURE_WIDTH, validate=False)
        elif index in pages:
            picture = of_page(pages[index])
            widget_pictures.append(picture)
        if picture:
            output.data["image/png"] = base64.b64encode(picture).decode()
    return widget_pictures


def of_page(path: Path, scheme: str = "light") -> bytes:
    """PNG of a widget's painted page in a "light" or "dark" browser. Raises RuntimeError if its script fails."""
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
