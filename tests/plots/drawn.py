"""Figures as a browser draws them on a machine with DejaVu's fonts only, which are wider than Arial's."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from matplotlib.image import imread
from playwright.sync_api import Browser, Playwright

from kvviz.plots.export import browser_page
from tests.browser.lab import chromium_arguments

DEJAVU = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
AROUND = 120  # CSS pixels
SCALE = 3  # about 300 dots per inch: at fewer, browsers round the widths of letters to whole dots
CONFIGURATION = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{fonts}</dir>
  <cachedir>{folder}/cache</cachedir>
  <match target="pattern">
    <edit name="family" mode="append_last" binding="weak"><string>DejaVu Sans</string></edit>
  </match>
</fontconfig>
"""
# plotly gives a legend that is higher than its part of the figure a scroll bar, and cuts the rest.
SCROLLS = "svg => [...svg.querySelectorAll('.scrollbar')].some(bar => bar.getAttribute('height') > 0)"


@contextmanager
def dejavu_only(folder: Path, playwright: Playwright) -> Iterator[Browser]:
    """A browser that knows only DejaVu's fonts; so does that of kaleido, as long as this lasts."""
    import kaleido

    fonts = folder / "fonts"
    fonts.mkdir()
    for path in DEJAVU.glob("DejaVuS*.ttf"):
        (fonts / path.name).symlink_to(path)
    (folder / "fonts.conf").write_text(CONFIGURATION.format(fonts=fonts, folder=folder))
    before = os.environ.get("FONTCONFIG_FILE")
    os.environ["FONTCONFIG_FILE"] = str(folder / "fonts.conf")
    kaleido.start_sync_server(silence_warnings=True, **browser_page())
    try:
        browser = playwright.chromium.launch(env=dict(os.environ), **chromium_arguments())
        yield browser
        browser.close()
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
        os.environ.pop("FONTCONFIG_FILE")
        if before is not None:
            os.environ["FONTCONFIG_FILE"] = before


def ink_outside(svg: Path, browser: Browser) -> list[str]:
    """Where a figure draws outside its own box: of "left", "right", "top", "bottom"; and "legend" if that is cut.

    The SVG is rasterised with what it clips at its border, in the middle of a larger page of the figure's colour.
    """
    page = browser.new_page(device_scale_factor=SCALE)
    style = f"body {{ margin: {AROUND}px; background: #fff }} svg {{ display: block; overflow: visible !important }}"
    page.set_content(f"<style>{style}</style>{svg.read_text(encoding='utf-8')}")
    figure = page.locator("svg.main-svg").first
    box = figure.bounding_box()
    page.set_viewport_size({name: round(box[name]) + 2 * AROUND for name in ("width", "height")})
    cut = ["legend"] if figure.evaluate(SCROLLS) else []
    pixels = imread(io.BytesIO(page.screenshot()), "png")[..., :3]
    page.close()
    inked = (pixels < 0.98).any(-1)
    start, right, bottom = (int(SCALE * (AROUND + length)) for length in (0, box["width"] + 0.5, box["height"] + 0.5))
    assert inked[start:bottom, start:right].any(), "nothing is drawn at all"
    sides = {"left": inked[:, :start], "right": inked[:, right:], "top": inked[:start], "bottom": inked[bottom:]}
    return [side for side, part in sides.items() if part.any()] + cut
