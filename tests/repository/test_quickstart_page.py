"""The page that `run.py --html` writes, of a small notebook with a widget, in a real Chromium from disk."""

from __future__ import annotations

import runpy
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

ROOT = Path(__file__).parents[2]
STEPPER = f"""import sys; sys.path.insert(0, {str(ROOT)!r})
from kvviz.widgets import DecodeStepper, MissInspector
from tests.synthetic import diagnosis, recording
display(DecodeStepper(recording()), MissInspector(diagnosis()))"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page; its notebook begins with a title, and prints before it shows a widget."""
    run, folder = runpy.run_path(str(ROOT / "notebooks" / "run.py")), tmp_path_factory.mktemp("page")
    cells = [
        nbformat.v4.new_markdown_cell("# A <question>?\n\nWords below the title."),
        nbformat.v4.new_code_cell("print('printed')"),
        nbformat.v4.new_code_cell(STEPPER),
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    run["execute"](notebook, str(folder))
    path = folder / "page.html"
    path.write_text(run["page"](notebook, "name", folder))
    return path


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 600)])
def test_the_first_screen_is_a_widget_as_high_as_its_content_and_as_light_as_the_page(browser, written, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(written.as_uri())
    assert page.title() == "A <question>?"
    expect(page.locator("h1")).to_have_text("A <question>?")
    frames = page.locator("iframe.kvviz-frame")
    expect(frames).to_have_count(2)
    frame = frames.first
    assert "budget 32" in frame.get_attribute("title")
    inner = frame.content_frame.locator("#kvviz-root")
    expect(inner.locator(".kv-stepper .kv-attended[data-position]").first).to_be_visible()
    expect(frame).to_have_attribute("style", "height: " + f"{inner.evaluate(CEILING)}px;")
    assert frame.bounding_box()["y"] < 200
    legend = frame.content_frame.locator(".kv-legend")
    assert legend.bounding_box()["y"] + legend.bounding_box()["height"] <= sum(vertical(frame))  # not cut
    expect(inner.locator(".kvviz")).to_have_attribute("data-theme", "light")
    ground = frame.content_frame.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"

    code = page.locator(".cm-editor")
    assert [cell.is_visible() for cell in code.all()] == [False, False]
    page.locator("summary", has_text="Code").first.click()
    expect(code.first).to_be_visible()
    expect(code.first).to_contain_text("print")
    expect(page.get_by_text("printed", exact=True)).to_be_visible()
    expect(page.get_by_text("This widget is at the top of the page.")).to_be_visible()
    assert troubles == []
    context.close()


CEILING = "root => Math.ceil(root.getBoundingClientRect().height)"


def vertical(frame):
    box = frame.bounding_box()
    return box["y"], box["height"]
