"""The mechanism stepper as a page opened from disk: frames, motion, words, the followed token, keys alone."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from kvviz.widgets import MechanismStepper
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.generation.test_explore import made_trace
from tests.widgets.test_browser import opened
from tests.widgets.test_layout_browser import mechanism
from tests.widgets.test_widget_input import hostile_tokens

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
PIXELS = "canvas => canvas.toDataURL()"


@pytest.fixture(scope="module")
def made():
    return mechanism()


@pytest.fixture(scope="module")
def path(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "mechanism.html"
    made.to_html(path)
    return path


def without_motion(page):
    page.get_by_role("button", name="whether things move", pressed=True).click()


def told(page):
    return " ".join(page.locator(".kv-told").all_inner_texts()).strip()


def test_the_page_is_small_and_its_frames_are_those_of_the_scene(browser, path, made):
    assert path.stat().st_size < 1_000_000
    frames = made.scene.frames
    with opened(browser, path) as page:
        without_motion(page)
        slider = page.get_by_role("slider", name="frame", exact=True)
        slider.press("Home")
        for number, frame in enumerate(frames):
            assert told(page) == frame.words
            expect(page.locator(".kv-step output")).to_have_text(f"{number + 1} / {len(frames)}")
            expect(page.locator(".kv-chapters [aria-current]")).to_have_text(frame.chapter)
            slider.press("ArrowRight")
        lit = page.locator(".kv-attended[data-position]")
        attended = frames[-1].lit.positions[frames[-1].lit.attended].tolist()
        assert lit.evaluate_all("spans => spans.map(span => Number(span.dataset.position))") == attended


def test_keys_alone_go_through_all_frames_and_chapters_and_follow_a_token(browser, path, made):
    with opened(browser, path) as page:
        page.keyboard.press("Tab")
        for _ in range(60):  # to the text, past all controls
            if page.evaluate("document.activeElement.classList.contains('kv-strip')"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("Enter")
        followed = page.locator("[data-lit]")
        expect(followed).to_have_count(1)
        position = int(followed.get_attribute("data-position"))
        assert position != made.token
        page.keyboard.press("Home")
        expect(page.locator(".kv-step output")).to_have_text(f"1 / {len(made.scene.frames)}")
        cluster = made.scene.members["cluster"][position]
        assert page.locator(".kv-sheet code").text_content().count(f"token={position}") == 1
        assert cluster >= -1  # a sink is in none
        chapter = page.get_by_role("button", name="chapter: cut")
        chapter.focus()
        page.keyboard.press("Enter")
        expect(chapter).to_have_attribute("aria-current", "step")


def test_screen_readers_hear_each_frame_and_what_its_picture_shows(browser, path, made):
    with opened(browser, path) as page:
        without_motion(page)
        page.get_by_role("button", name="chapter: scores").press("Enter")
        number = next(at for at, frame in enumerate(made.scene.frames) if frame.chapter == "scores")
        words = made.scene.frames[number].words
        expect(page.locator(".kv-spoken[role=status]", has_text=words)).to_have_count(1)
        canvas = page.get_by_role("img")
        assert "Bars, q·centroid of each cluster" in canvas.get_attribute("aria-label")


def test_words_wait_for_what_moves_and_light_up_what_they_speak_of(browser, path, made):
    number = next(at for at, frame in enumerate(made.scene.frames) if "The best is" in frame.result)
    with opened(browser, path) as page:
        slider = page.get_by_role("slider", name="frame", exact=True)
        slider.fill(str(number))
        expect(page.locator(".kv-told[data-waits]")).to_have_count(0)
        page.get_by_role("button", name="next frame").click()
        expect(page.locator(".kv-told[data-waits]")).to_have_count(1)  # the bars are on their way
        first = page.locator("canvas.kv-picture").evaluate(PIXELS)
        expect(page.locator(".kv-told[data-waits]")).to_have_count(0)
        arrived = page.locator("canvas.kv-picture").evaluate(PIXELS)
        assert first != arrived
        expect(page.locator(".kv-refer[data-spoken]")).to_have_count(1)  # by itself, once it has arrived
        expect(page.locator(".kv-refer[data-spoken]")).to_have_count(0)
        unlit = page.locator("canvas.kv-picture").evaluate(PIXELS)
        page.locator(".kv-refer").first.focus()
        assert page.locator("canvas.kv-picture").evaluate(PIXELS) != unlit


def test_nothing_moves_if_the_system_asks_for_that(browser, path):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(path.as_uri())
    slider = page.get_by_role("slider", name="frame", exact=True)
    slider.press("Home")
    expect(page.get_by_text("motion off")).to_be_visible()
    slider.press("ArrowRight")
    assert page.locator(".kv-told[data-waits]").count() == 0
    context.close()


def test_it_plays_to_the_last_frame_and_stops(browser, path, made):
    last = len(made.scene.frames)
    with opened(browser, path) as page:
        without_motion(page)
        page.get_by_role("slider", name="frame", exact=True).fill(str(last - 1))
        play = page.get_by_role("button", name="play or pause")
        play.click()
        expect(play).to_have_attribute("aria-pressed", "true")
        expect(page.locator(".kv-step output")).to_have_text(f"{last} / {last}")
        expect(play).to_have_attribute("aria-pressed", "false")


def test_hostile_tokens_are_neither_markup_nor_references(browser, tmp_path):
    tokens = hostile_tokens(200)
    tokens[60:120] = [f"[[x{number}|token:{number}]]<b>|" for number in range(60)]
    made = MechanismStepper(made_trace(200, tokens=tokens), "clusterkv", budget=96, queries=8, token=70)
    made.to_html(tmp_path / "page.html")
    made.frame = len(made.scene.frames) - 1
    made.to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        without_motion(page)
        page.get_by_role("slider", name="frame", exact=True).press("Home")
        assert told(page) == made.scene.frames[0].words
        assert page.locator(".kv-words b").count() == 0
        assert page.locator(".kv-refer").evaluate_all("nodes => nodes.map(node => node.dataset.objects)") == [
            "token:70"
        ]


def test_another_head_step_or_token_is_computed_again(made):
    stepper = mechanism()
    before = json.loads(bytes(stepper.content))
    stepper.head, stepper.step = 1, 3
    after = json.loads(bytes(stepper.content))
    assert after["where"] == {"layer": 3, "head": 1, "step": 3, "token": stepper.token}
    assert after["frames"] != before["frames"]
    stepper.token = 77
    assert "token:77" in json.loads(bytes(stepper.content))["frames"][0]["focus"]
