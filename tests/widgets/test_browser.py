"""The stepper in a real Chromium: as a page without a kernel or a network, and live in JupyterLab."""

from __future__ import annotations

import re
from contextlib import contextmanager

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz.widgets import DecodeStepper
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import pick_head
from tests.browser.recordings import HOSTILE, hostile_recording
from tests.synthetic import recording

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

COLOURS = """canvas => {
    const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(image.data.buffer)).size;
}"""
MARKS = """node => {
    const style = getComputedStyle(node);
    return [style.backgroundImage !== "none", style.textDecorationLine, style.boxShadow !== "none"];
}"""
ATTENDED = "spans => spans.map(span => Number(span.dataset.position))"


def attended(page):
    """The positions that the page marks as attended, ascending."""
    return page.locator(".kv-attended[data-position]").evaluate_all(ATTENDED)


def recorded(made, step, layer=2, head=0):
    indices = made.indices(step, layer)[head]
    return indices[indices >= 0].tolist()


@contextmanager
def opened(browser, path, *, scheme="light", width=960):
    """A page opened from disk; requests other than files, errors and dialogs fail the test."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    problems = []
    context.route(
        "**/*",
        lambda route: (
            route.continue_()
            if route.request.url.startswith(("file:", "data:"))
            else (problems.append(route.request.url), route.abort())
        ),
    )
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
    page.goto(path.as_uri())
    expect(page.locator(".kv-attended[data-position], .kv-question").first).to_be_visible()
    yield page
    context.close()
    assert problems == []


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    made = hostile_recording()
    path = tmp_path_factory.mktemp("page") / "stepper.html"
    DecodeStepper(made).to_html(path)
    return made, path


def brightness(page, selector, name):
    colour = page.locator(selector).first.evaluate(f"node => getComputedStyle(node).{name}")
    return np.mean([float(value) for value in re.findall(r"[\d.]+", colour)[:3]])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_keys_step_through_the_page(browser, hostile, scheme):
    made, path = hostile
    with opened(browser, path, scheme=scheme) as page:
        assert attended(page) == recorded(made, 0)
        slider = page.get_by_role("slider", name="decode step")
        slider.press("ArrowRight")
        assert attended(page) == recorded(made, 1) != recorded(made, 0)
        slider.press("End")
        assert attended(page) == recorded(made, 5)
        page.locator(".kv-prompt .kv-panel").press("ArrowLeft")
        assert attended(page) == recorded(made, 4)
        slider.press("Home")
        assert attended(page) == recorded(made, 0)
        expect(page.get_by_role("slider", name="decode step")).to_have_value("0")
        background, text = brightness(page, ".kvviz", "backgroundColor"), brightness(page, ".kvviz", "color")
        assert (background > 200 > 100 > text) if scheme == "light" else (background < 60 < 180 < text)


@pytest.mark.slow
def test_space_plays_to_the_end(browser, hostile):
    made, path = hostile
    with opened(browser, path) as page:
        slider = page.get_by_role("slider", name="decode step")
        slider.press("ArrowRight")
        slider.press(" ")
        expect(page.get_by_role("button", name="pause")).to_be_visible()
        expect(slider).to_have_value("5")
        expect(page.get_by_role("button", name="play")).to_be_visible()
        assert attended(page) == recorded(made, 5)


def test_tokens_are_not_markup(browser, hostile):
    made, path = hostile
    with opened(browser, path) as page:
        assert (
            page.locator("[data-position]").evaluate_all("spans => spans.map(span => span.textContent)") == made.tokens
        )
        assert page.locator(".kvviz img, .kvviz script, .kvviz b").count() == 0
        assert HOSTILE[0] in made.tokens
        page.locator("[data-position='0']").hover()
        expect(page.get_by_role("tooltip")).to_contain_text("·<script>alert(1)</script>")


def test_hover_shows_token_position_cluster_score_and_weight(browser, hostile):
    made, path = hostile
    with opened(browser, path) as page:
        slot = int(np.flatnonzero(made.groups(0, 2)[0] >= 0)[0])
        position = recorded(made, 0)[slot]
        page.locator(f"[data-position='{position}']").hover()
        tip = page.get_by_role("tooltip").locator(".kv-value").all_inner_texts()
        assert tip[1:3] == [str(position), f"#{made.groups(0, 2)[0, slot]}"]
        assert float(tip[3]) == pytest.approx(made.scores(0, 2)[0, slot], rel=0.01)
        assert float(tip[4]) == pytest.approx(made.attention(0, 2)[0, position], rel=0.01)
        shown = page.locator(".kv-number").all_inner_texts()
        assert shown[:3] == [
            f"{made.recall(0, 2)[0]:.2f}",
            f"{made.attention_mass(0, 2)[0]:.2f}",
            str(len(recorded(made, 0))),
        ]
        untitled = page.locator(".kv-number, output, .kv-share, .kv-size, .kv-id, .kv-rank, .kv-score").evaluate_all(
            "nodes => nodes.filter(node => !node.closest('[data-meaning]')).length"
        )
        assert untitled == 0


def test_the_maps_pick_layer_head_and_step(browser, hostile):
    made, path = hostile
    with opened(browser, path) as page:
        assert page.get_by_label("layer", exact=True).count() == 0  # the map picks
        pick_head(page, 3, 0)
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3, head=0")
        pick_head(page, 3, 1)
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3, head=1")
        assert attended(page) == recorded(made, 0, layer=3, head=1)
        canvas = page.locator(".kv-map canvas")
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] / 2, "y": box["height"] * 4.5 / 6})
        assert attended(page) == recorded(made, 4, layer=3, head=1)
        assert canvas.evaluate(COLOURS) > 20
        controls = page.locator(".kvviz").locator("button:visible, input:visible, select:visible, summary:visible")
        assert controls.and_(page.locator(":not(.kv-headcell)")).count() == 7  # and the map of heads


def test_agreed_missed_and_wasted_differ_in_greyscale(browser, hostile):
    _, path = hostile
    with opened(browser, path) as page:
        looks = {
            mark: page.locator(f".kv-prompt .{mark}").first.evaluate(MARKS)
            for mark in ("kv-agreed:not(.kv-kept)", "kv-missed", "kv-wasted:not(.kv-agreed)")
        }
        assert list(looks.values()) == [[False, "underline", False], [False, "underline", True], [True, "none", False]]


def test_a_narrow_page_stacks_its_panels(browser, hostile):
    _, path = hostile
    for width, stacked in ((960, False), (520, True)):
        with opened(browser, path, width=width) as page:
            prompt, map_box = (page.locator(selector).bounding_box() for selector in (".kv-prompt", ".kv-map"))
            assert (map_box["y"] >= prompt["y"] + prompt["height"]) == stacked
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_screenshot_is_a_picture_of_the_panel(browser, hostile, tmp_path):
    _, path = hostile
    with opened(browser, path) as page:
        page.get_by_role("slider", name="decode step").press("ArrowRight")
        page.get_by_text("Save", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as PNG").click()
        assert download.value.suggested_filename == "decode-stepper-step-1-layer-2-head-0.png"
        saved = tmp_path / "saved.png"
        download.value.save_as(saved)
        data = saved.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        box = page.locator(".kvviz").bounding_box()
        assert int.from_bytes(data[16:20], "big") == round(2 * box["width"])
        assert abs(int.from_bytes(data[20:24], "big") - 2 * box["height"]) <= 2
        assert len(data) > 50_000  # text and map, not an empty picture


@pytest.mark.slow
def test_long_prompts_show_a_window(browser, tmp_path):
    made = recording(prompt_length=30_000, steps=2, budget=64, layers=(2,), heads=1)
    DecodeStepper(made).to_html(tmp_path / "long.html")
    with opened(browser, tmp_path / "long.html") as page:
        box, note = page.locator(".kv-map canvas").bounding_box(), page.locator(".kv-prompt .kv-window")
        for share, first, last in ((0.99, 22_000, 29_999), (0.004, 0, 7_999)):
            page.locator(".kv-map canvas").click(position={"x": box["width"] * share, "y": 3})
            expect(note).to_contain_text(f"Showing tokens {first:,} to {last:,} of 30,000.")
            assert page.locator(".kv-prompt [data-position]").count() == 8_000
            assert attended(page) == [
                position for position in recorded(made, 0) if first <= position <= last or position >= 30_000
            ]


def test_the_text_opens_at_the_strongest_recalled_token(browser, tmp_path):
    made = recording(prompt_length=3000, steps=2, budget=200)
    DecodeStepper(made).to_html(tmp_path / "page.html")
    recalled = made.indices(0, 2)[0][made.groups(0, 2)[0] >= 0]
    strongest = max(recalled, key=lambda position: made.attention(0, 2)[0, position])
    with opened(browser, tmp_path / "page.html") as page:
        expect(page.locator(f"[data-position='{strongest}']")).to_be_in_viewport()
