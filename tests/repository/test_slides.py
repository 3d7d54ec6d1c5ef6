"""The slides of a notebook, in a real Chromium from disk without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "notebooks"))
import slides  # noqa: E402  # found through the line above

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    picture = nbformat.v4.new_output("display_data", data={"image/png": DOT})
    first, second = (nbformat.v4.new_code_cell("draw()", outputs=[picture]) for _ in range(2))
    return nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell(
            "# What is <it>?\n\n*About 20 minutes · next*\n\nA [page](x.md#page) holds *16* of 2.5. More."
        ),
        first, nbformat.v4.new_code_cell("print()"),
        nbformat.v4.new_markdown_cell("## Old\n\nOld text.\n\n## New section\n\n- a list\n\nIts first. Its second."),
        second,
    ])  # fmt: skip


def test_a_slide_has_its_section_and_the_first_sentence_before_its_picture(notebook: nbformat.NotebookNode) -> None:
    found = [(slide.title, slide.sentence) for slide in slides.slides(notebook)]
    assert found == [("What is <it>?", "A page holds 16 of 2.5."), ("New section", "Its first.")]


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_has_slides_that_ask_no_other_host(path: Path) -> None:
    page = slides.page(nbformat.read(path, 4))
    assert page.count("<section") >= 2
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)


@pytest.mark.browser
@pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
def test_arrow_keys_turn_the_slides_and_each_prints_on_a_page_of_its_own(browser, notebook, tmp_path: Path) -> None:
    path = tmp_path / "slides.html"
    path.write_text(slides.page(notebook))
    context = browser.new_context(viewport={"width": 1280, "height": 720}, offline=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    expect(page.locator("section.shown")).to_have_text(re.compile(r"^What is <it>\?"))
    for _ in range(3):  # one more than there are
        page.keyboard.press("ArrowRight")
    expect(page.locator("section.shown h2")).to_have_text("New section")
    assert page.locator("section:visible").count() == 1
    page.keyboard.press("ArrowLeft")
    expect(page.locator("section.shown footer")).to_have_text("What is <it>? · 2 of 3")
    pdf = page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == 3
    assert errors == []
    context.close()
