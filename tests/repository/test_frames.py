"""A frame is as high as its widget, also where the widget is ready before the outer page's script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "notebooks"))
import frames  # noqa: E402  # found through the line above

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

WIDGET = '<title>w</title><body style="margin: 0"><div id="kvviz-root" style="height: 321px"></div></body>'


@pytest.mark.parametrize("late", [False, True])
def test_a_frame_takes_the_height_of_its_widget(browser: Browser, tmp_path: Path, late: bool) -> None:
    parts = frames.outer_parts()
    listen = "addEventListener('message', ({data}) => { document.title = `heard ${data.kvvizHeight}`; });"
    own = "" if late else f"<script>{parts['frames.js']}</script>"
    outer = f"<script>{listen}</script><style>{parts['frames.css']}</style>{frames.frame(WIDGET)}{own}"
    (tmp_path / "outer.html").write_text(f"<body>{outer}</body>")
    page = browser.new_page()
    page.goto((tmp_path / "outer.html").as_uri())
    expect(page).to_have_title("heard 321")
    if late:
        page.add_script_tag(content=parts["frames.js"])
    expect(page.locator("iframe")).to_have_css("height", "321px")
    page.close()
