"""The prediction as a page opened from disk: answered and compared by keys, pointer and finger; nothing shown early."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from kvviz.widgets import Choice, Curve, Order, Prediction, Value
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.recordings import HOSTILE
from tests.widgets.predictions import ANSWERS, prediction
from tests.widgets.test_browser import opened
from tests.widgets.test_reach_browser import tabbed_to

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
# Everything of the widget that can be read, by whatever means: its markup has all texts, names and drawn places.
MARKUP = "document.querySelector('#kvviz-root').innerHTML"
NUMBERS = (
    "1.73",
    "1.7",
    "0.317",
    "0.32",
    "0.823",
    "0.82",
    "0.0419",
    "0.042",
    "0.771",
    "0.77",
    "0.887",
    "0.89",
    "0.513",
)
HIDDEN = (*NUMBERS, "a run of our own", "data-measured", "kv-diamond", "kv-tag")
SPOKEN = "p.kv-spoken"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "prediction.html"
    prediction().to_html(path)
    return path


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "answered.html"
    prediction(answers=ANSWERS).to_html(path)
    return path


def shown(page):
    """Which of the measured numbers and marks the page has."""
    markup = page.evaluate(MARKUP)
    return [text for text in HIDDEN if re.search(rf"(?<![\d.]){re.escape(text)}(?!\d)", markup)]


def compare(page):
    return page.get_by_role("button", name="Compare with the measurement")


def test_keys_alone_answer_all_kinds_and_both_numbers_are_read(browser, path):
    with opened(browser, path) as page:
        expect(compare(page)).to_be_disabled()
        assert shown(page) == []
        tabbed_to(page, ".kv-asked-value input")
        slider = page.locator(".kv-asked-value input")
        expect(slider).to_have_attribute("aria-valuetext", "not answered yet")
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        expect(slider).to_have_attribute("aria-valuetext", "8.9 tokens")
        expect(page.locator(SPOKEN).last).to_have_text(
            "How many of the needle's tokens does Quest attend to? 8.9 tokens. 1 of 4 answered."
        )
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        expect(page.get_by_role("radio", name="Quest")).to_be_checked()
        tabbed_to(page, "[aria-label='move StreamingLLM up']")
        for _ in range(3):
            page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="move StreamingLLM down")).to_be_focused()  # it cannot go up any more
        names = page.locator(".kv-order .kv-ordered")
        assert names.all_inner_texts() == ["StreamingLLM", "ClusterKV", "CTkvr", "Quest"]
        expect(compare(page)).to_be_disabled()
        tabbed_to(page, ".kv-point")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Shift+ArrowDown")  # 6 of 50 steps
        page.keyboard.press("End")
        page.keyboard.press("ArrowUp")
        heights = [
            float(text) for text in page.locator(".kv-point").evaluate_all("all => all.map(one => one.ariaValueNow)")
        ]
        assert heights == [0.38, 0.39, 0.39, 0.4, 0.4]  # those between lie on the line
        expect(page.locator(SPOKEN).last).to_contain_text("budget, tokens 1,024: 0.40. 4 of 4 answered.")
        assert shown(page) == []
        tabbed_to(page, ".kv-compare")
        page.keyboard.press("Enter")
        said = "You said 8.9, measured 1.7 tokens: 7.2 more than was measured."
        expect(page.locator(".kv-result").first).to_have_text(said)
        expect(page.locator(SPOKEN).last).to_contain_text(said)
        expect(page.locator(".kv-result").nth(1)).to_have_text("You said Quest, measured ClusterKV.")
        expect(page.locator(".kv-result").nth(2)).to_have_text("You ordered 3 of 6 pairs as measured.")
        assert page.locator(".kv-right .kv-measured").all_inner_texts() == ["0.042", "0.32", "0.77", "0.82"]
        expect(page.locator(".kv-result").nth(3)).to_contain_text("from the measured curve of ClusterKV")
        page.keyboard.press("Shift+Tab")
        point = page.locator(".kv-point:focus")
        expect(point).to_have_attribute(
            "aria-valuetext", "you 0.40, measured ClusterKV 0.89, measured a run of our own 0.51"
        )
        page.keyboard.press("ArrowUp")  # an answer stays while it is compared
        expect(point).to_have_attribute("aria-valuenow", "0.4")


def test_try_again_hides_what_was_measured_and_keeps_the_answers(browser, answered):
    with opened(browser, answered) as page:
        line = page.locator(".kv-sheet code")
        before = line.text_content()
        page.locator(".kv-point").first.focus()
        compare(page).press("Enter")
        assert len(shown(page)) >= 8
        page.locator(".kv-asked-curve > svg").hover()  # its tip has measured numbers
        expect(page.locator(".kv-tip")).to_contain_text("measured")
        expect(page.get_by_role("slider").first).to_be_disabled()
        again = page.get_by_role("button", name="Try again")
        expect(again).to_be_focused()
        again.press("Enter")
        expect(compare(page)).to_be_focused()
        assert shown(page) == []
        assert line.text_content() == before
        page.get_by_role("slider").first.press("Home")
        expect(line).to_contain_text('attend to?":0,')
        compare(page).press("Enter")
        expect(page.locator(".kv-result").first).to_contain_text("You said 0.0, measured 1.7 tokens")


def test_a_page_without_motion_draws_the_measured_line_at_once(browser, answered):
    for motion, name in (("no-preference", "kv-drawn"), ("reduce", "none")):
        context = browser.new_context(reduced_motion=motion)
        page = context.new_page()
        page.goto(answered.as_uri())
        compare(page).click()
        line = page.locator(".kv-asked-curve > svg .kv-measured-lines .kv-series").first
        assert line.evaluate("node => getComputedStyle(node).animationName") == name
        context.close()


def test_a_stroke_sets_all_points_that_it_passes_and_a_drag_only_one(browser, path):
    with opened(browser, path, width=800) as page:
        svg, points = page.locator(".kv-asked-curve > svg"), page.locator(".kv-point")
        svg.scroll_into_view_if_needed()
        box = svg.bounding_box()
        centre = [(each["x"] + each["width"] / 2) for each in map(lambda one: one.bounding_box(), points.all())]
        page.mouse.move(centre[0], box["y"] + 190)
        page.mouse.down()
        page.mouse.move(centre[-1], box["y"] + 15, steps=3)  # fewer than there are points
        page.mouse.up()
        drawn = points.evaluate_all("all => all.map(one => Number(one.ariaValueNow))")
        assert drawn == sorted(set(drawn))
        assert drawn[0] < 0.1 < 0.9 < drawn[-1]
        assert page.locator(".kv-point[data-unset]").count() == 0
        page.mouse.move(centre[-1], box["y"] + 15)
        page.mouse.down()
        page.mouse.move(centre[1], box["y"] + 100, steps=3)
        page.mouse.up()
        moved = points.evaluate_all("all => all.map(one => Number(one.ariaValueNow))")
        assert moved[:-1] == drawn[:-1]
        assert 0.4 < moved[-1] < 0.6


def test_a_finger_moves_a_point_and_a_name(browser, path):
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(path.as_uri())
    touch = context.new_cdp_session(page)

    def drag(node, by):
        node.scroll_into_view_if_needed()
        box = node.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind, at in (("touchStart", 0), ("touchMove", by / 2), ("touchMove", by), ("touchEnd", None)):
            points = [] if at is None else [{"x": x, "y": y + at}]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    drag(page.locator(".kv-point").nth(2), -60)
    expect(page.locator(".kv-point").nth(2)).not_to_have_attribute("data-unset", "")
    assert float(page.locator(".kv-point").nth(2).get_attribute("aria-valuenow")) > 0.7
    drag(page.locator(".kv-grip").first, 80)
    expect(page.locator(".kv-order .kv-ordered").nth(2)).to_have_text("ClusterKV")
    expect(page.locator(SPOKEN).last).to_contain_text("2 of 4 answered.")
    context.close()


def test_hostile_texts_are_only_text(browser, tmp_path):
    texts = [f"{number} {text.encode(errors='ignore').decode() or 'x'}" for number, text in enumerate(HOSTILE)]
    made = Prediction(
        Value(f"{texts[0]} <img src=x onerror=alert(1)>", 1, 0, 2, "<b>"), Choice("</script>?", texts[1], texts[1:4]),
        Order("<!-- ?", {text: number for number, text in enumerate(texts[:4])}),
        Curve("<svg/onload=alert(1)>", [1, 2], {"<i>": [0, 1]}, "<b>", "<b>", known={"</style>": [0, 0]}),
    )  # fmt: skip
    made.answers = {
        text: answer for text, answer in zip(
            (question.text for question in made.questions), (1, texts[2], texts[:4], [0, 1]), strict=True
        )
    }  # fmt: skip
    made.to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        compare(page).click()
        expect(page.locator(".kv-result").first).to_contain_text("You said 1, measured 1 <b>: just as measured.")
        assert page.locator("#kvviz-root :is(b, i, img, script, style)").count() == 0
        assert [text.strip() for text in page.locator(".kv-option span:first-of-type").all_text_contents()] == [
            text.strip() for text in texts[1:4]
        ]
