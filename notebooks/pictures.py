"""Pictures of a notebook's figures and widgets, for viewers that do not run scripts.

This needs kaleido and playwright, which `make setup` installs, and a Chromium on the machine.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
import plotly.io
from playwright.sync_api import Page, sync_playwright

FIGURE_WIDTH, WIDGET_WIDTH, HEIGHT = 760, 960, 800  # CSS pixels
DRAWN_MS = 120_000  # until a page paints its first token, on a busy machine
# A token that is painted (a scene's first frames have texts without tint), or a question.
PAINTED = "#kvviz-root :is(:is(.kv-attended, .kv-mechanism *)[data-position], .kv-question)"
NEXT_PICTURE = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"


def add(outputs: list[nbformat.NotebookNode], figure_type: str, pages: Mapping[int, Path]) -> None:
    """Replace each plotly figure among the outputs by a PNG, and add one to each widget.

    JupyterLab shows the PNG of a saved notebook even if the figure is there too, which can take half a megabyte.
    `pages` maps the index of a widget's output to its page without a kernel.
    """
    for index, output in enumerate(outputs):
        picture = None
        if figure_type in output.data:
            figure = output.data.pop(figure_type)
            figure.pop("config", None)
            picture = plotly.io.to_image(figure, format="png", width=FIGURE_WIDTH, validate=False)
        elif index in pages:
            picture = of_page(pages[index])
        if picture:
            output.data["image/png"] = base64.b64encode(picture).decode()


def of_page(path: Path, scheme: str = "light") -> bytes:
    """PNG of a widget's painted page in a "light" or "dark" browser. Raises RuntimeError if its script fails."""
    with painted(path, scheme) as page:
        return page.locator("#kvviz-root").screenshot()


def of_frames(
    path: Path, numbers: Sequence[int], scheme: str = "light", *, width: int, scale: float, part: str,
    height: int | None = None,
) -> list[bytes]:  # fmt: skip
    """PNGs of a MechanismStepper's page at the frames of these numbers, from 0, without motion.

    The page is `width` CSS pixels wide, with `scale` pixels for each. A picture shows the `part` that this CSS selector
    names, or, with a `height`, the page over its whole width from the top of that part on. Raises RuntimeError if the
    page's script fails.
    """
    with painted(path, scheme, width, scale) as page:
        shots, slider, shown = [], page.get_by_role("slider", name="frame", exact=True), page.locator(part)
        for number in numbers:
            slider.fill(str(number + 1))
            slider.blur()  # no ring of the focus
            page.evaluate(NEXT_PICTURE)
            if height is None:
                shots.append(shown.screenshot())
            else:
                clip = {"x": 0, "y": shown.bounding_box()["y"], "width": width, "height": height}
                shots.append(page.screenshot(clip=clip))
        return shots


@contextmanager
def painted(path: Path, scheme: str = "light", width: int = WIDGET_WIDTH, scale: float = 1) -> Iterator[Page]:
    """A widget's page in a browser that asks for reduced motion, once its text is painted.

    Raises RuntimeError if the page's script fails, also at the end of the block.
    """
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(
            viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, device_scale_factor=scale,
            reduced_motion="reduce",
        )  # fmt: skip
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        page.locator(PAINTED).first.wait_for(state="attached", timeout=DRAWN_MS)
        page.evaluate(NEXT_PICTURE)
        yield page
        if errors:
            raise RuntimeError(f"{path.name} fails in the browser: {errors[0]}")
        browser.close()
