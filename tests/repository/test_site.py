"""The site, with every notebook run from the recorded data, in a real Chromium from disk without a network."""

from __future__ import annotations

import dataclasses
import html
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import expect

import kvviz
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import pages  # noqa: E402  # found through the line above
import references  # noqa: E402  # likewise

WIDGETS, FIGURES = "00_quickstart", "04_clusterkv"  # notebooks that begin with a stepper, and that have figures
NEEDS_BROWSER = pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site in KVVIZ_SITE, if it was built before; otherwise a new one."""
    if built := os.environ.get("KVVIZ_SITE"):
        return Path(built).resolve()
    out = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, ROOT / "docs" / "build.py", "--out", out, *["--light"] * NO_BROWSER]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    assert "within Binder's 2 GiB" in process.stdout
    assert list(out.parent.iterdir()) == [out], "temporary files are left over"
    return out


def ground(picture):
    """The lightness of a picture's most frequent colour, from 0 to 1."""
    pixels = imread(io.BytesIO(picture.screenshot()), "png")[..., :3]
    codes = np.rint(255 * pixels).astype(int) @ [1 << 16, 1 << 8, 1]  # numbers are sorted faster than triples
    colours, counts = np.unique(codes, return_counts=True)
    return np.mean([*int(colours[counts.argmax()]).to_bytes(3)]) / 255


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_every_method_has_a_page_with_its_fields_and_measurements(site):
    overview = (site / "methods.html").read_text()
    for name in kvviz.methods.names():
        method = kvviz.methods.get(name)
        assert f'href="methods/{name}.html"' in overview
        page = (site / "methods" / f"{name}.html").read_text()
        cells = [text_of_cell(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", page, re.DOTALL)]
        for field in dataclasses.fields(method):
            at = cells.index(field.name)
            assert cells[at + 1 : at + 3] == [str(field.type), repr(field.default)]
            presets = cells[at + 3 : at + 3 + len(method.presets)]
            set_by = [values.get(field.name, "") for values in method.presets.values()]
            assert presets == [repr(value) if value != "" else "" for value in set_by]
    clusterkv = text_of(site / "methods" / "clusterkv.html")
    assert "arXiv 2412.03213" in clusterkv
    assert kvviz.methods.get("clusterkv").expected_failures["extension_equals_one_build"] in clusterkv
    row = next(line for line in pages.MEASURED.read_text().splitlines() if line.startswith("| `clusterkv, official`"))
    assert row.split(" | ")[1] in clusterkv
    assert "2 cores" in clusterkv  # the hardware


def text_of_cell(cell: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", cell)).strip()


def test_pages_of_docs_are_in_the_navigation_and_their_links_hold_in_the_site(site):
    front = (site / "index.html").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f'href="{path.stem}.html"' in front or path.stem == "index"
        links = re.findall(r'href="([^"]+)"', (site / f"{path.stem}.html").read_text())
        assert not [link for link in links if link.endswith(".md") or link.startswith(("../", "docs/"))]


def test_every_public_name_is_in_the_reference(site):
    def described(page):
        return set(re.findall(r'<dt class="[^"]*" id="([\w.]+)"', (site / "reference" / page).read_text()))

    top = described("kvviz.html")
    assert {f"kvviz.{name}" for name in pages.package_names()} <= top
    for module in pages.MODULES:
        entries = described(f"kvviz.{module}.html")
        for name in pages.module_names(module):
            assert {f"kvviz.{module}.{name}"} & entries or {f"kvviz.{name}"} & top, f"{module}.{name}"
    modules = {name for name in kvviz.__all__ if f"kvviz.{name}" not in top} - {"__version__"}
    assert modules <= set(pages.MODULES)


def test_widgets_have_their_signatures_in_the_reference(site):
    text = re.sub(r"\s+", " ", text_of(site / "reference" / "kvviz.widgets.html"))
    assert "class BudgetExplorer( trace: Trace, *, method: str = 'clusterkv', budget: float | None = None" in text
    assert "args: t.Any" not in text


def test_docstrings_are_rendered(site):
    page = (site / "reference" / "kvviz.metrics.html").read_text()
    assert "`" not in text_of(site / "reference" / "kvviz.metrics.html")
    assert re.search(r'<code class="docutils literal notranslate"><span class="pre">distances</span></code>', page)


def test_the_check_finds_fetched_and_missing_files(tmp_path):
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/a.css'; a { background: url(data:image/png,) }")
    (tmp_path / "page.html").write_text(
        '<link rel="stylesheet" href="style.css"><link rel="next" href="gone.html"><a href="https://people.example">x</a>'
        '<script src="//cdn.example/x.js"></script><p style="background: url(http://img.example/1.png)">'
        '<style>@font-face { src: url("https://fonts.example/f.woff2") }</style><img srcset="a.png 2x, /b.png 1x">'
    )
    problems = "\n".join(references.troubles(tmp_path))
    for host in ("//cdn.example/x.js", "http://img.example/1.png", "https://fonts.example/f.woff2"):
        assert f"page.html: asks another host: {host}" in problems
    assert "style.css: asks another host: https://fonts.example/a.css" in problems
    for target in ("gone.html", "a.png", "/b.png"):
        assert f"page.html: refers to what is missing: {target}" in problems
    assert "people.example" not in problems


@pytest.mark.browser
@NEEDS_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_is_a_live_widget_with_another_below_and_the_code_folded(site, browser, scheme):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    frame = page.locator("iframe.kvviz-frame").first
    widget = frame.content_frame.locator(".kv-stepper")
    expect(widget).to_have_attribute("data-theme", scheme)
    expect(widget.locator(".kv-next")).to_have_text("7")  # the first digit of the number that was asked for
    assert frame.bounding_box()["y"] < 200
    slider = widget.get_by_role("slider", name="decode step")
    step = int(slider.input_value())
    slider.press("ArrowRight")
    expect(slider).to_have_value(str(step + 1))
    expect(widget.locator(".kv-next")).to_have_text("4")
    second = page.locator("iframe.kvviz-frame").nth(1)
    second.scroll_into_view_if_needed()
    mechanism = second.content_frame.locator(".kv-mechanism")
    expect(mechanism).to_have_attribute("data-theme", scheme)
    mechanism.get_by_role("slider", name="frame", exact=True).press("ArrowRight")
    expect(mechanism.locator(".kv-chapters [aria-current]")).to_have_text("clusters")
    code = page.get_by_text("lm = kvviz.load()")
    expect(code).to_be_hidden()
    page.locator("summary", has_text="Show the code").click()
    expect(code).to_be_visible()
    context.close()


@pytest.mark.browser
@NEEDS_BROWSER
@pytest.mark.parametrize("page_name", ["data/gallery/README", "data/papers/clusterkv", "index", "looking"])
def test_pictures_follow_the_theme(site, browser, page_name):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True)
    page = context.new_page()
    page.goto((site / f"{page_name}.html").as_uri())
    grounds = {}
    for theme in ("light", "dark"):
        while page.locator("body").get_attribute("data-theme") != theme:
            page.locator(".theme-toggle:visible").first.click()
        shown = [picture for picture in page.locator(".content img").all() if picture.is_visible()]
        assert len(shown) >= 3
        grounds[theme] = [ground(picture) for picture in shown[:6]]
    assert len(grounds["light"]) == len(grounds["dark"])
    assert min(grounds["light"]) > 0.95
    assert max(grounds["dark"]) < 0.15
    context.close()


@pytest.mark.browser
@NEEDS_BROWSER
def test_the_notebook_lives_from_disk_without_a_network(site, browser):
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True)
    page, troubles = context.new_page(), []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: troubles.append(request.url) if request.url.startswith("http") else None)
    page.goto((site / "notebooks" / f"{WIDGETS}.html").as_uri())
    frame = page.locator("iframe.kvviz-frame").first
    frame.scroll_into_view_if_needed()
    widget = frame.content_frame
    highlighted = widget.locator(".kv-attended[data-position]")
    highlighted.first.wait_for()
    before = frame.screenshot()
    slider = widget.get_by_role("slider", name="decode step")
    step = int(slider.input_value())
    slider.press("ArrowLeft")
    expect(slider).to_have_value(str(step - 1))
    assert frame.screenshot() != before
    # The frame is as high as its content, and follows the reader's theme.
    inner = widget.locator("#kvviz-root")
    expect(frame).to_have_attribute("style", re.compile("height"))
    assert abs(frame.bounding_box()["height"] - inner.bounding_box()["height"]) <= 4
    drawn = inner.locator(".kvviz")
    expect(drawn).to_have_attribute("data-theme", "light")
    while page.locator("body").get_attribute("data-theme") != "dark":
        page.locator(".theme-toggle:visible").first.click()
    expect(drawn).to_have_attribute("data-theme", "dark")
    page.goto((site / "notebooks" / f"{FIGURES}.html").as_uri())  # the theme is kept
    expect(page.locator(".plotly-graph-div .main-svg").first).to_have_css("background-color", "rgb(17, 17, 17)")
    # A folded measurement takes its width when it opens.
    folded = page.locator("details:has(.plotly-graph-div)").first
    folded.locator("summary").first.click()
    figure = folded.locator(".plotly-graph-div .main-svg").first
    expect(figure).to_be_visible()
    assert 0.9 < figure.bounding_box()["width"] / folded.bounding_box()["width"] <= 1
    # All figures use the one script of the site.
    assert page.locator(".plotly-graph-div .main-svg").count() >= 3
    assert page.locator('script[src$="plotly.min.js"]').count() == 1
    page.goto((site / "search.html").as_uri() + "?q=clusterkv")
    page.locator("#search-results li").first.wait_for()
    assert troubles == []
    context.close()
