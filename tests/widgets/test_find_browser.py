"""Finding text in the prompt, what the text follows in each widget, and the wheel over a text."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from kvviz.widgets import BudgetExplorer, DecodeStepper, MethodComparer, MissInspector, view
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import pick_head, settle
from tests.browser.recordings import prose_recording
from tests.generation.test_explore import made_trace
from tests.synthetic import diagnosis, recording
from tests.widgets.test_browser import ATTENDED, opened
from tests.widgets.test_follow_browser import FOLLOWS, IN_SIGHT

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
FIELD = "find text in the prompt"
WIDGETS = {
    "stepper": lambda: DecodeStepper(recording(prompt_length=1500)),
    "comparer": lambda: MethodComparer([recording(prompt_length=1500), recording(prompt_length=1500, seed=4)]),
    "explorer": lambda: BudgetExplorer(made_trace(400), method="quest", budget=96),
    "misses": lambda: MissInspector(diagnosis([f" word{at}{' and more' * 9}" for at in range(60)])),
}
SCROLLED = "() => [window.scrollY, document.querySelector('.kv-strip').scrollTop]"


def outlined(page, name):
    return page.locator(f".kv-prompt [data-{name}]").evaluate_all(ATTENDED)


def matches(tokens, query):
    """The positions of the tokens of each match, in order."""
    text = "".join(tokens)
    owner = [position for position, token in enumerate(tokens) for _ in token]
    pattern = re.sub(r"(\\ )+", r"\\s", re.escape(query))
    found = re.finditer(pattern, text, re.IGNORECASE)
    return [sorted(set(owner[match.start() : match.end()])) for match in found]


def test_text_over_several_tokens_is_found_outlined_and_counted(browser, tmp_path):
    made = prose_recording(prompt_length=900, steps=6, budget=120, layers=(2,))
    DecodeStepper(made).to_html(tmp_path / "page.html")
    wanted = matches(made.tokens[: made.prompt_length], "context manager")
    assert len(wanted) > 3
    assert all(len(match) > 1 for match in wanted)
    with opened(browser, tmp_path / "page.html") as page:
        page.locator(".kv-prompt .kv-panel").evaluate("panel => { panel.scrollTop = 0; }")
        page.locator(".kv-prompt .kv-panel").press("/")
        field = page.get_by_label(FIELD)
        expect(field).to_be_focused()
        page.keyboard.type("Context Manager")
        said = page.locator(".kv-found")
        assert said.get_attribute("role") == "status"
        expect(said).to_have_text(f"match 1 of {len(wanted)}, position {wanted[0][0]}")
        assert outlined(page, "found") == sorted({place for match in wanted for place in match})
        for number in (1, 2, 1, 0, len(wanted) - 1):
            page.keyboard.press("Enter" if number == 2 or (number == 1 and outlined(page, "match") == wanted[0])
                                else "Shift+Enter")  # fmt: skip
            assert outlined(page, "match") == wanted[number]
            assert page.evaluate(IN_SIGHT, wanted[number][0])
            expect(said).to_contain_text(f"match {number + 1} of {len(wanted)}")
        page.get_by_role("button", name="next match").click()
        assert outlined(page, "match") == wanted[0]
        field.press("ArrowRight")  # moves in the field
        expect(page.locator(".kv-step output")).to_have_text("0 / 5")
        field.fill("no such words")
        expect(said).to_have_text("no match")
        assert outlined(page, "found") == outlined(page, "match") == []
        field.fill("with")
        field.press("Escape")
        expect(field).to_have_value("")
        expect(said).to_be_empty()
        assert outlined(page, "found") == []


@pytest.mark.parametrize("name", WIDGETS)
def test_every_text_can_be_searched_by_a_key(browser, tmp_path, name):
    WIDGETS[name]().to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        page.locator(".kv-strip").first.press("/")
        page.keyboard.type("word31")
        texts = page.locator(".kv-prompt .kv-strip, .kv-explorer-text .kv-strip")
        assert texts.count() == (2 if name == "comparer" else 1)
        for text in texts.all():
            assert 31 in text.locator("[data-found]").evaluate_all(ATTENDED)
            expect(text.locator("[data-match]").first).to_be_in_viewport()


@pytest.mark.slow
def test_a_match_outside_the_shown_window_is_shown(browser, tmp_path):
    made = recording(prompt_length=30_000, steps=2, budget=64, layers=(2,), heads=1)
    DecodeStepper(made).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        for position in (29_990, 12):
            page.get_by_label(FIELD).fill(f"word{position} ")
            page.get_by_label(FIELD).press("Enter")
            assert outlined(page, "match")[0] == position
            assert page.evaluate(IN_SIGHT, position)


@pytest.mark.parametrize("name", WIDGETS)
def test_a_wheel_over_a_text_at_its_end_scrolls_the_page(browser, tmp_path, name):
    WIDGETS[name]().to_html(tmp_path / "page.html")
    context = browser.new_context(viewport={"width": 900, "height": 420})
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    strip = page.locator(".kv-strip").first
    strip.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    strip.evaluate("node => { node.scrollTop = 1; }")
    page.mouse.move(*middle(strip))
    before = page.evaluate(SCROLLED)
    page.mouse.wheel(0, 40)
    page.wait_for_timeout(400)
    inside = page.evaluate(SCROLLED)
    assert inside[0] == before[0]
    assert inside[1] > before[1]  # the text scrolls first
    strip.evaluate("node => { node.scrollTop = 1e9; }")
    page.wait_for_timeout(600)  # a gesture of the wheel stays with what it began to scroll
    page.mouse.wheel(0, 200)
    page.wait_for_timeout(400)
    assert page.evaluate(SCROLLED)[0] > before[0]
    context.close()


def middle(locator):
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, min(box["y"] + box["height"] / 2, 400)


def frame(made, step, layer):
    arrays = view.token_arrays(made, layer, 0)
    span = slice(*arrays["offsets"][[step, step + 1]])
    return list(zip(*(arrays[name][span].tolist() for name in ("weights", "positions", "marks", "groups")),
                    strict=True))  # fmt: skip


def test_the_texts_of_a_comparer_follow_what_is_asked_for(browser, tmp_path):
    runs = [recording(prompt_length=3000, budget=200, seed=seed) for seed in (0, 4)]
    MethodComparer({"one": runs[0], "two": runs[1]}).to_html(tmp_path / "page.html", layers=[2, 3])

    def heaviest(step, layer, *, missed):
        tokens = [token for made in runs for token in frame(made, step, layer)]
        sinks = {position for _, position, mark, _ in tokens if mark & view.SINK}
        return max(
            (weight, position)
            for weight, position, mark, group in tokens
            if (not mark & view.ATTENDED if missed else group >= 0 and position not in sinks)
        )[1]

    with opened(browser, tmp_path / "page.html") as page:
        panel = page.locator(".kv-prompt .kv-panel").first
        expect(page.locator(".kv-follow")).to_have_text("follows the strongest token")
        for step in (0, 1, 2):
            assert page.evaluate(IN_SIGHT, heaviest(step, 2, missed=False))
            panel.press("ArrowRight")
        settle(page, FOLLOWS, "the missed token")
        assert page.evaluate(IN_SIGHT, heaviest(3, 2, missed=True))
        pick_head(page, 3, 0)
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3")
        assert page.evaluate(IN_SIGHT, heaviest(3, 3, missed=True))
        settle(page, FOLLOWS, "nothing")
        before = panel.evaluate("panel => panel.scrollTop")
        panel.press("Home")
        expect(page.locator(".kv-step output")).to_have_text("0 / 5")
        assert panel.evaluate("panel => panel.scrollTop") == before
        expect(page.locator(".kv-follow")).to_have_text("follows nothing")
        page.locator(".kv-prompt [data-position]").nth(20).evaluate("token => token.click()")
        panel.evaluate("panel => { panel.scrollTop = 1e9; }")
        settle(page, FOLLOWS, "the picked token")
        assert page.evaluate(IN_SIGHT, 20)


def test_the_text_of_an_explorer_follows_what_is_asked_for(browser, tmp_path):
    BudgetExplorer(made_trace(600), method="quest", budget=96).to_html(tmp_path / "page.html")
    sight = IN_SIGHT.replace(".kv-prompt .kv-panel", ".kv-explorer-text .kv-panel").replace(".kv-prompt [", "[")
    with opened(browser, tmp_path / "page.html") as page:
        text = page.locator(".kv-explorer-text .kv-strip")
        text.locator("[data-position='5']").evaluate("token => token.click()")
        assert text.locator("[data-lit]").evaluate_all(ATTENDED) == [5]
        text.evaluate("node => { node.scrollTop = 1e9; }")
        settle(page, FOLLOWS, "the picked token")
        assert page.evaluate(sight, 5)
        text.evaluate("node => { node.scrollTop = 1e9; }")
        assert not page.evaluate(sight, 5)
        page.get_by_role("slider", name="budget").press("ArrowRight")
        expect(page.locator(".kv-title")).not_to_contain_text("budget 96 ")
        assert page.evaluate(sight, 5)
        settle(page, FOLLOWS, "nothing")
        text.evaluate("node => { node.scrollTop = 1e9; }")
        page.get_by_role("slider", name="budget").press("ArrowLeft")
        expect(page.locator(".kv-title")).to_contain_text("budget 96 ")
        assert not page.evaluate(sight, 5)
