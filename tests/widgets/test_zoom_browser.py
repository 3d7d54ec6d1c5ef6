"""Zooming into the maps of steps × positions in a real Chromium: by mouse, keys and fingers."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from kvviz.widgets import DecodeStepper, MethodComparer, assets
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import pick_head
from tests.synthetic import recording
from tests.widgets.test_browser import COLOURS, opened
from tests.widgets.test_reach_browser import tabbed_to

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
LENGTH = 3006
ALL = f"all {LENGTH:,} positions"
RANGE, SHOW_ALL = ".kv-range [role=status]", "show all positions (0)"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("pages"), recording(prompt_length=3000, budget=400, n_clusters=50)
    DecodeStepper(made, span=[1505, 2999]).to_html(folder / "stepper.html")
    MethodComparer({"one": made, "two": recording(prompt_length=3000, budget=80, seed=3)}).to_html(
        folder / "comparer.html"
    )
    return folder


def shown_range(page):
    """The positions shown, from the words beside the map: the first, and the one after the last."""
    words = page.locator(RANGE).inner_text()
    found = re.fullmatch(rf"positions ([\d,]+) to ([\d,]+) of {LENGTH:,}", words)
    assert found, words
    first, last = (int(number.replace(",", "")) for number in found.groups())
    return first, last + 1


def drag(page, canvas, start, stop):
    """Drag over a map, between two shares of its width."""
    box = canvas.bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + (start + stop) / 2 * box["width"], y)
    page.mouse.move(box["x"] + stop * box["width"], y)
    page.mouse.up()


def hovered(page, canvas, share):
    """The position that a map shows at a share of its width."""
    box = canvas.bounding_box()
    canvas.hover(position={"x": share * box["width"], "y": box["height"] / 2})
    return int(page.locator(".kv-tip .kv-value").nth(2).inner_text().replace(",", ""))


def test_a_drag_zooms_in_and_the_button_shows_all_again(browser, paths):
    with opened(browser, paths / "stepper.html") as page:
        canvas, button = page.locator(".kv-map canvas"), page.get_by_role("button", name=SHOW_ALL)
        expect(page.locator(RANGE)).to_have_text(ALL)
        expect(button).to_be_hidden()
        before = page.locator(".kv-step output").inner_text()
        drag(page, canvas, 0.45, 0.55)
        start, stop = shown_range(page)
        assert abs(start - 0.45 * LENGTH) < 10
        assert abs(stop - 0.55 * LENGTH) < 16
        assert page.locator(".kv-step output").inner_text() == before  # the click that ends a drag picks nothing
        assert page.locator(".kv-axis span").all_inner_texts()[::2] == [f"{start:,}", f"{stop - 1:,}"]
        assert abs(hovered(page, canvas, 0.5) - (start + stop) / 2) <= 2
        assert canvas.evaluate(COLOURS) > 3
        asked = page.locator(".kv-asked")
        expect(asked.nth(1)).to_be_hidden()  # outside the range
        left = asked.nth(0).evaluate("node => node.offsetLeft / node.parentElement.clientWidth")
        assert left == pytest.approx((1505.5 - start) / (stop - start), abs=0.02)
        expect(page.locator(".kv-end")).to_be_hidden()
        drag(page, canvas, 0.2, 0.3)  # deeper: one column per token
        deeper = shown_range(page)
        assert start <= deeper[0] < deeper[1] <= stop
        assert hovered(page, canvas, 0.999) == deeper[1] - 1
        button.click()
        expect(page.locator(RANGE)).to_have_text(ALL)
        expect(button).to_be_hidden()
        expect(page.locator(".kv-end")).to_be_visible()


def test_keys_zoom_at_the_cursor_and_choose_a_range(browser, paths):
    with opened(browser, paths / "stepper.html") as page:
        spoken = page.locator("p.kv-spoken")
        tabbed_to(page, ".kv-map canvas")
        for _ in range(40):
            page.keyboard.press("ArrowRight")
        position = re.search(r"position ([\d,]+)", spoken.inner_text())[1]
        for factor in (2, 4, 8):
            page.keyboard.press("+")
            start, stop = shown_range(page)
            assert stop - start == pytest.approx(LENGTH / factor, abs=2)
            assert start <= int(position.replace(",", "")) < stop
        expect(spoken).to_contain_text("step 0, ")  # the cursor is still there
        page.keyboard.press("-")
        start, stop = shown_range(page)
        assert stop - start == pytest.approx(LENGTH / 4, abs=3)
        for _ in range(5):
            page.keyboard.press("Shift+ArrowRight")
        expect(page.locator(RANGE)).to_contain_text("choosing positions")
        expect(page.locator(".kv-brush")).to_be_visible()
        page.keyboard.press("Enter")
        narrow = shown_range(page)
        assert start <= narrow[0] < narrow[1] <= stop
        assert 0.1 < (narrow[1] - narrow[0]) / (stop - start) < 0.25
        page.keyboard.press("Shift+ArrowLeft")
        page.keyboard.press("Escape")  # no choice any more
        expect(page.locator(".kv-brush")).to_be_hidden()
        assert shown_range(page) == narrow
        page.keyboard.press("Escape")
        expect(page.locator(RANGE)).to_have_text(ALL)
        page.keyboard.press("+")
        page.keyboard.press("0")
        expect(page.locator(RANGE)).to_have_text(ALL)
        assert page.locator(".kv-step output").inner_text() == "0 / 5"


def test_arrow_keys_move_a_zoomed_range_along(browser, paths):
    with opened(browser, paths / "stepper.html") as page:
        tabbed_to(page, ".kv-map canvas")
        page.keyboard.press("ArrowRight")
        for _ in range(6):
            page.keyboard.press("+")
        first = shown_range(page)
        assert first[0] == 0
        for _ in range(60):
            page.keyboard.press("ArrowRight")
        start, stop = shown_range(page)
        assert start > 0
        assert stop - start == first[1]


def test_the_columns_zoom_together(browser, paths):
    with opened(browser, paths / "comparer.html") as page:
        canvases = page.locator(".kv-map canvas")
        drag(page, canvases.nth(1), 0.6, 0.4)  # from right to left too
        start, stop = shown_range(page)
        for number in (0, 1):
            assert abs(hovered(page, canvases.nth(number), 0.5) - (start + stop) / 2) < (stop - start) / 20
        pick_head(page, 2, 1)
        expect(page.locator(".kv-sheet code")).to_contain_text("head=1")
        assert shown_range(page) == (start, stop)
        assert start <= hovered(page, canvases.nth(0), 0.5) < stop
        page.get_by_role("button", name=SHOW_ALL).click()
        expect(page.locator(RANGE)).to_have_text(ALL)


def test_a_finger_chooses_sideways_and_scrolls_up_and_down(browser, paths):
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 600})
    page = context.new_page()
    page.goto((paths / "stepper.html").as_uri())
    canvas = page.locator(".kv-map canvas")
    canvas.scroll_into_view_if_needed()
    box, session = canvas.bounding_box(), context.new_cdp_session(page)

    def swipe(across, down):
        x, y = box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2
        session.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
        for part in range(1, 11):
            point = {"x": x + across * part / 10, "y": y + down * part / 10}
            session.send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [point]})
            page.wait_for_timeout(20)
        session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        page.wait_for_timeout(300)

    before = page.evaluate("scrollY")
    swipe(0, -150)
    assert page.evaluate("scrollY") > before + 50
    expect(page.locator(RANGE)).to_have_text(ALL)
    page.evaluate("y => scrollTo(0, y)", before)
    swipe(100, 4)
    start, stop = shown_range(page)
    assert start == pytest.approx(0.4 * LENGTH, rel=0.1)
    assert (stop - start) / LENGTH == pytest.approx(100 / box["width"], rel=0.15)
    assert page.evaluate("scrollY") == before
    canvas.hover()
    page.mouse.wheel(0, 120)
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") > before  # a wheel scrolls too
    assert shown_range(page) == (start, stop)
    context.close()


@pytest.mark.slow
def test_32k_positions_zoom_down_to_single_tokens(browser, tmp_path):
    made = recording(prompt_length=32_762, steps=6, budget=2000, layers=(2,), heads=1, n_clusters=300)
    DecodeStepper(made).to_html(tmp_path / "long.html")
    with opened(browser, tmp_path / "long.html") as page:
        canvas = page.locator(".kv-map canvas")
        for share in ((0.3, 0.4), (0.5, 0.6), (0.2, 0.3)):
            drag(page, canvas, *share)
        words = page.locator(RANGE).inner_text()
        first, last = (int(word.replace(",", "")) for word in re.findall(r"[\d,]+", words)[:2])
        assert last - first < 60
        width = canvas.bounding_box()["width"]
        positions = [hovered(page, canvas, (column + 0.5) / (last - first + 1)) for column in range(last - first + 1)]
        assert positions == list(range(first, last + 1))
        assert width > 100


# A CanvasMatrix without a kernel, whose 1,000 columns are grey by their number; `model` has its values.
MATRIX = """async (source) => {
    const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    const view = (make, length) => new DataView(Uint8Array.from({ length }, make).buffer), heard = {};
    const grey = view((_, at) => (at % 4 === 3 ? 255 : at >> 2), 1024);
    const columns = (count) => ({ shape: [2, count], values: view((_, at) => (at % count) / 4, 2 * count) });
    const values = { ...columns(1000), colours: grey, label: "columns", row: -1, _kvviz_view: "matrix" };
    window.model = {
        get: (name) => values[name], set: (name, value) => (values[name] = value), save_changes() {}, off() {},
        on: (event, react) => (heard[event] = react), columns,
        paint: (count) => (Object.assign(values, columns(count)), heard["change:shape"](), heard["change:values"]()),
    };
    widget.render({ model: window.model, el: document.body });
}"""
GREY = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 1);
    return [data[0], data[4 * (canvas.width - 1)]];
}"""


def test_a_canvas_matrix_alone_zooms_into_its_columns(browser):
    page = browser.new_page(viewport={"width": 800, "height": 400})
    page.set_content("<body></body>")
    page.evaluate(MATRIX, assets.SCRIPT.read_text(encoding="utf-8"))
    canvas, words = page.locator("canvas"), page.locator(RANGE)
    expect(words).to_have_text("all 1,000 columns")
    drag(page, canvas, 0.2, 0.4)
    expect(words).to_have_text(re.compile(r"columns (19|20)\d to (39|40)\d of 1,000"))
    start, stop = (int(number) for number in re.findall(r"\d+", words.inner_text())[:2])
    assert canvas.evaluate(GREY) == [start // 4, stop // 4]
    assert page.evaluate("model.get('clicked')") is None  # the click that ends a drag picks nothing
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] - 1, "y": box["height"] - 2})
    assert page.evaluate("[model.get('clicked'), model.get('hovered')]") == [[1, stop], [1, stop]]
    page.evaluate("model.paint(1000)")  # another matrix of this width
    assert canvas.evaluate(GREY) == [start // 4, stop // 4]
    canvas.press("0")
    expect(words).to_have_text("all 1,000 columns")
    assert canvas.evaluate(GREY) == [0, 249]
    canvas.press("+")
    expect(words).to_contain_text("of 1,000")
    page.evaluate("model.paint(400)")  # one of another width is shown whole
    expect(words).to_have_text("all 400 columns")
    assert canvas.evaluate(GREY) == [0, 99]
    page.close()
