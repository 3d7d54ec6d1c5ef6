"""The "Save" menu of all widgets: files of what is shown, with their texts and size, in a real Chromium."""

from __future__ import annotations

import io
from contextlib import contextmanager
from xml.etree import ElementTree

import pytest
from playwright.sync_api import expect
from pypdf import PdfReader

from kvviz.errors import InvalidInputError
from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MethodComparer
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, empty_lab, run_cell
from tests.browser.recordings import hostile_recording
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
from tests.widgets.test_browser import opened
from tests.widgets.test_layout_browser import NAMES
from tests.widgets.test_silent_kernel import STOPPED
from tests.widgets.test_silent_kernel import opened as opened_silent

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
SVG = "{http://www.w3.org/2000/svg}"
# The document of the frame that would be printed, instead of the print dialog.
PRINTED = "window.print = () => { top.printed = document.documentElement.outerHTML; }"
DRAWN_BY_ALL = {"svg", "title", "desc", "defs", "rect", "text", "line", "path", "g", "image", "circle", "polyline",
                "pattern", "clipPath"}  # fmt: skip
PIXELS = """([svg, spots]) => new Promise((resolve) => {
    const image = new Image(), canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    image.onload = () => {
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        context.drawImage(image, 0, 0);
        resolve(spots.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data]));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
})"""
TEXT_IN_SIGHT = """root => {
    const hidden = ".kv-spoken, .kv-menu, .kv-tip, .kv-panel, svg, select";
    const sees = (node) => node.checkVisibility() && !node.querySelector("select") && !node.closest(hidden);
    const shown = "h2, h3, h3 span, output, .kv-number, .kv-picker span, button";
    const nodes = [...root.querySelectorAll(shown)].filter(sees);
    const own = (node) => [...node.childNodes].filter((part) => part instanceof Text).map((part) => part.data).join("");
    return nodes.map((node) => own(node).trim()).filter((text) => text && !text.includes("\\n"));
}"""
BOXES = """nodes => nodes.map((node) => {
    const { x, y, width, height } = node.getBoundingClientRect();
    return { x, y, width, height };
})"""
MENU = ".kv-menu:not(.kv-menu:has(~ .kv-menu))"  # the last one; "Settings" come before it
SAVE = f"{MENU} > summary"


def saved(page, kind):
    """The bytes and name of what the menu's entry saves."""
    page.locator(SAVE).click()
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save as {kind}", exact=True).first.click()
    return download.value.path().read_bytes(), download.value.suggested_filename


@contextmanager
def printed(browser, page):
    """The PDF that a browser makes of what "Save as PDF" prints."""
    page.add_init_script(PRINTED)  # for the frame to come
    page.locator(SAVE).click()
    with page.expect_event("frameattached"):
        page.get_by_role("button", name="Save as PDF", exact=True).first.click()
    sheet = browser.new_page()
    sheet.set_content(page.evaluate("window.printed"))
    yield PdfReader(io.BytesIO(sheet.pdf(prefer_css_page_size=True)))
    sheet.close()


def joined(text):
    return "".join(text.split())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_a_widget_is_saved_as_a_vector_graphic_with_its_texts(browser, widget_pages, name, scheme):
    with opened(browser, widget_pages[name], scheme=scheme, width=1200) as page:
        canvases = page.locator(".kvviz canvas").evaluate_all("nodes => nodes.map((node) => node.toDataURL())")
        data, file = saved(page, "SVG")
        assert file.endswith(".svg")
        root = ElementTree.fromstring(data)
        box = page.locator(".kvviz").bounding_box()
        assert int(root.get("width")) >= box["width"]  # the comparer's is wider: it shows all columns
        assert abs(int(root.get("height")) - box["height"]) <= 2
        assert {node.tag.removeprefix(SVG) for node in root.iter()} <= DRAWN_BY_ALL  # not <foreignObject>
        assert root.find(f"{SVG}title").text == page.locator("h2").text_content()
        assert root.find(f"{SVG}desc").text == page.locator(".kv-sheet code").text_content()
        assert root.get("font-family").endswith("sans-serif")
        texts = joined("".join(node.text or "" for node in root.iter(f"{SVG}text")))
        shown = page.locator(".kvviz").evaluate(TEXT_IN_SIGHT)
        assert len(shown) >= 5
        assert [text for text in shown if joined(text) not in texts] == []
        assert "Save" not in texts
        maps = [node.get("href") for node in root.iter(f"{SVG}image")]
        assert maps == canvases
        colours = {value for node in root.iter() for value in (node.get("fill"), node.get("stroke")) if value}
        assert all(value == "none" or value.startswith(("rgb(", "url(#pattern")) for value in colours)
        ground = page.evaluate(PIXELS, [data.decode(), [[4, 4]]])[0]
        assert ground == {"light": [255, 255, 255, 255], "dark": [21, 24, 28, 255]}[scheme]


def test_a_drawing_has_the_marks_and_only_the_text_in_sight(browser, tmp_path):
    made = recording(prompt_length=2000, steps=2, budget=300)
    DecodeStepper(made).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        data, _ = saved(page, "SVG")
        root = ElementTree.fromstring(data)
        assert len([*root.iter(f"{SVG}text")]) < 700  # of 2,000 tokens
        origin = page.locator(".kvviz").bounding_box()
        panel = page.locator(".kv-prompt .kv-panel").bounding_box()
        for mark, same in ((".kv-prompt .kv-agreed", False), (".kv-prompt .kv-missed", True)):
            boxes = page.locator(mark).evaluate_all(BOXES)
            box = next(box for box in boxes if panel["y"] + 20 < box["y"] < panel["y"] + panel["height"] - 40)
            spot = [round(box["x"] - origin["x"] + box["width"] / 2), round(box["y"] - origin["y"] + 3)]
            pixel = page.evaluate(PIXELS, [data.decode(), [spot]])[0]
            assert (pixel == [255, 255, 255, 255]) == same, mark
        assert root.find(f".//{SVG}pattern") is not None  # hatched or dotted


def test_text_that_no_file_may_hold_is_replaced(browser, widget_pages):
    # The tokens are hostile: control characters, halves of pairs, markup.
    with opened(browser, widget_pages["stepper"]) as page:
        data, _ = saved(page, "SVG")
        ElementTree.fromstring(data.decode("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_pdf_is_one_page_of_the_widgets_size_with_its_texts(browser, widget_pages, name):
    with opened(browser, widget_pages[name], width=1200) as page, printed(browser, page) as pdf:
        assert len(pdf.pages) == 1
        box, size = page.locator(".kvviz").bounding_box(), pdf.pages[0].mediabox
        assert float(size.height) == pytest.approx(box["height"] * 0.75, abs=2)  # points per CSS pixel
        assert float(size.width) >= box["width"] * 0.75 - 1
        text = joined(pdf.pages[0].extract_text())
        assert joined(page.locator("h2").text_content().split(" · ")[0]) in text
        assert page.locator("iframe").count() <= 1  # removed when the dialog is closed


def test_the_printed_frame_goes_when_the_dialog_is_closed(browser, widget_pages):
    with opened(browser, widget_pages["misses"]) as page, printed(browser, page):
        title = page.title()
        page.frames[1].evaluate("dispatchEvent(new Event('afterprint'))")
        expect(page.locator("iframe")).to_have_count(0)
        assert page.title() != title  # it named the file


@pytest.mark.parametrize("name", NAMES)
def test_a_page_saves_itself_as_it_is_now(browser, widget_pages, name, tmp_path):
    with opened(browser, widget_pages[name]) as page:
        code, opened_at = page.locator(".kv-sheet code"), page.locator(".kv-sheet code").text_content()
        page.get_by_role("slider").first.press("ArrowLeft" if name in ("misses", "inspector") else "ArrowRight")
        expect(code).not_to_have_text(opened_at)
        line = code.text_content()
        data, file = saved(page, "HTML")
        assert file.endswith(".html")
    again = tmp_path / "again.html"
    again.write_bytes(data)
    with opened(browser, again) as page:
        expect(page.locator(".kv-sheet code")).to_have_text(line)
        assert page.locator(".kvviz").count() == 1
        assert saved(page, "HTML")[0] == data


def test_the_menu_by_keys(browser, widget_pages):
    with opened(browser, widget_pages["stepper"]) as page:
        summary, slider = page.locator(SAVE), page.get_by_role("slider", name="decode step")
        step = slider.input_value()
        summary.press("Enter")
        items = page.locator(f"{MENU} button")
        assert items.all_text_contents() == [
            "Save as PNG", "Save as SVG", "Save as PDF", "Save as HTML", "Copy the call that made this",
        ]  # fmt: skip
        for key, index in (("ArrowDown", 0), ("ArrowDown", 1), ("End", 4), ("ArrowUp", 3), ("Home", 0)):
            page.keyboard.press(key)
            expect(items.nth(index)).to_be_focused()
        page.keyboard.press("Escape")
        expect(summary).to_be_focused()
        expect(items.first).to_be_hidden()
        assert slider.input_value() == step
        summary.press("Enter")
        with page.expect_download():
            items.nth(1).press("Enter")
        expect(summary).to_be_focused()
        expect(page.locator(".kv-head [role=status].kv-spoken")).to_have_text(
            f"Saved decode-stepper-step-{step}-layer-2-head-0.svg."
        )


def test_a_kernel_that_makes_no_page_is_reported(browser):
    page, errors = opened_silent(browser, DecodeStepper(recording()), {})
    page.locator(SAVE).click()
    page.get_by_role("button", name="Save as HTML").click()
    said = page.locator(MENU)
    page.clock.run_for(30_000)  # a page may take that long
    expect(said).to_contain_text("Making the page")
    page.clock.run_for(31_000)
    expect(said).to_contain_text(STOPPED)
    expect(said).to_contain_text("Nothing was saved.")
    expect(said).not_to_contain_text("Making the page")
    assert errors == []
    page.close()


WIDGETS = {
    "stepper": lambda: DecodeStepper(hostile_recording()),
    "comparer": lambda: MethodComparer([recording(), recording(seed=5)]),
    "explorer": lambda: BudgetExplorer(made_trace(200), method="quest", budget=96),
}


@pytest.mark.parametrize("name", WIDGETS)
def test_the_kernel_answers_with_the_page(name, monkeypatch):
    widget, sent = WIDGETS[name](), []
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append((content, buffers)))
    widget._handle_custom_msg({"kind": "page"}, [])
    assert sent == [({"kind": "page"}, [widget.to_html().encode()])]


def test_the_kernel_says_why_there_is_no_page(monkeypatch):
    inspector, sent = ClusterInspector(made_trace(200)), []

    def refuse():
        raise InvalidInputError("to_html", "this", "that")

    monkeypatch.setattr(inspector, "to_html", refuse)
    monkeypatch.setattr(inspector, "send", lambda content, buffers: sent.append(content))
    with pytest.raises(InvalidInputError):
        inspector._send_page(inspector, {"kind": "page"}, [])
    assert sent == [{"kind": "page", "refusal": "to_html: got this; wanted that"}]


@pytest.mark.slow
def test_a_live_widget_saves_what_it_shows(browser, tmp_path):
    with empty_lab(browser, tmp_path) as lab:
        run_cell(lab, "from kvviz.widgets import DecodeStepper\nfrom tests.synthetic import recording\n"
                      "DecodeStepper(recording())")  # fmt: skip
        lab.get_by_role("slider", name="decode step").press("ArrowRight")
        line = lab.locator(".kv-sheet code").text_content()
        assert "step=1" in line
        drawing, _ = saved(lab, "SVG")
        assert ElementTree.fromstring(drawing).find(f"{SVG}desc").text == line
        page, file = saved(lab, "HTML")
        assert file == "decode-stepper-step-1-layer-2-head-0.html"
    (tmp_path / "page.html").write_bytes(page)
    with opened(browser, tmp_path / "page.html") as page:
        expect(page.locator(".kv-sheet code")).to_have_text(line)
