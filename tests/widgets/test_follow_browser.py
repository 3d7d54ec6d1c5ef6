"""The stepper's text follows a token, and a picked token is told over all steps."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from kvviz.widgets import DecodeStepper, view
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import settle
from tests.synthetic import recording
from tests.widgets.test_browser import opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
IN_SIGHT = """position => {
    const panel = document.querySelector(".kv-prompt .kv-panel").getBoundingClientRect();
    const token = document.querySelector(`.kv-prompt [data-position="${position}"]`).getBoundingClientRect();
    return token.top >= panel.top - 1 && token.bottom <= panel.bottom + 1;
}"""
LAYER, HEAD = 3, 1
FOLLOWS = "the token that the text follows"


@pytest.fixture(scope="module")
def made():
    return recording(prompt_length=3000, steps=6, budget=200)


def frame(made, step):
    arrays = view.token_arrays(made, LAYER, HEAD)
    span = slice(*arrays["offsets"][[step, step + 1]])
    return {name: arrays[name][span] for name in ("positions", "marks", "groups", "weights")}


def heaviest(made, step, *, missed):
    shown = frame(made, step)
    among = (shown["marks"] & view.ATTENDED == 0) if missed else shown["groups"] >= 0
    return int(max(zip(shown["weights"][among], shown["positions"][among], strict=True))[1])


def test_the_text_follows_what_is_asked_for(browser, made, tmp_path):
    DecodeStepper(made, layer=LAYER, head=HEAD).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        panel = page.locator(".kv-prompt .kv-panel")
        for step in range(3):
            assert page.evaluate(IN_SIGHT, heaviest(made, step, missed=False))
            panel.press("ArrowRight")
        settle(page, FOLLOWS, "the missed token")
        for step in (3, 4):
            assert page.evaluate(IN_SIGHT, heaviest(made, step, missed=True))
            panel.press("ArrowRight")
        settle(page, FOLLOWS, "nothing")
        before = panel.evaluate("panel => panel.scrollTop")
        panel.press("Home")
        expect(page.locator(".kv-step output")).to_have_text("0 / 5")
        assert panel.evaluate("panel => panel.scrollTop") == before


def test_a_picked_token_is_outlined_and_told_over_all_steps(browser, made, tmp_path):
    DecodeStepper(made, layer=LAYER, head=HEAD).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        position = heaviest(made, 0, missed=False)
        token = page.locator(f".kv-prompt [data-position='{position}']")
        token.click()
        counts = dict.fromkeys(("agreed", "wasted", "missed"), 0)
        for step in range(made.steps):
            shown = frame(made, step)
            for mark in shown["marks"][shown["positions"] == position]:
                attended = "agreed" if mark & view.ORACLE else "wasted"
                counts[attended if mark & view.ATTENDED else "missed"] += 1
        told = ", ".join(f"{name} in {count}" for name, count in counts.items() if count)
        line = page.locator(".kv-picked")
        expect(line).to_contain_text(f"at {position}: {told} of 6 steps, in this head")
        page.locator(".kv-prompt .kv-panel").press("End")
        assert page.locator("[data-lit]").evaluate_all("all => all.map(one => +one.dataset.position)") == [position]
        settle(page, FOLLOWS, "the picked token")
        assert page.evaluate(IN_SIGHT, position)
        token.click()
        expect(line).to_be_hidden()
        expect(page.locator("[data-lit]")).to_have_count(0)
