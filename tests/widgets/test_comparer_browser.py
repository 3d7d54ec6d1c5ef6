"""The comparer in a real Chromium: as a page without a kernel or a network, and live in JupyterLab."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz import replay
from kvviz.widgets import MethodComparer
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import pick_head
from tests.browser.recordings import hostile_recording
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
from tests.widgets.test_browser import ATTENDED, COLOURS, brightness, opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

LOOK = """node => {
    const style = getComputedStyle(node);
    const filled = !["rgba(0, 0, 0, 0)", "transparent"].includes(style.backgroundColor);
    return [filled, style.boxShadow !== "none", style.backgroundImage.includes("linear-gradient")];
}"""
DASHED = "node => getComputedStyle(node).outlineStyle"
LEFT = "nodes => nodes.map(node => [node.getBoundingClientRect().left, node.ariaLabel]).sort((a, b) => a[0] - b[0])"
PATHS = "() => [...document.querySelectorAll('.kv-own')].map(path => path.getAttribute('d'))"
TOPS = "() => [...document.querySelectorAll('.kv-prompt .kv-panel')].map(panel => panel.scrollTop)"


def two():
    made = hostile_recording()
    return {"first": made, "second <b>": recording(tokens=made.tokens, budget=20, seed=5)}


def many(count=6, **shape):
    return {f"method {seed}": recording(seed=seed, budget=20 + 4 * seed, **shape) for seed in range(count)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The page of `two`."""
    place = tmp_path_factory.mktemp("comparer") / "page.html"
    MethodComparer(two()).to_html(place, layers=[2, 3])
    return place


def attended(page, number):
    """Attended positions in the prompt of column `number`."""
    return page.locator(f".kv-column >> nth={number}").locator(".kv-prompt .kv-attended").evaluate_all(ATTENDED)


def in_prompt(made, step, layer=2, head=0):
    return [int(position) for position in made.indices(step, layer)[head] if 0 <= position < made.prompt_length]


def order(page):
    """Names of the columns from left to right."""
    return [name for _, name in page.locator(".kv-column").evaluate_all(LEFT)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_arrow_keys_change_the_step_of_every_column(browser, path, scheme):
    runs = list(two().values())
    with opened(browser, path, scheme=scheme) as page:
        slider = page.get_by_role("slider", name="decode step")
        for key, step in (("ArrowRight", 1), ("End", 5), ("ArrowLeft", 4), ("Home", 0), ("ArrowRight", 1)):
            slider.press(key)
            assert [attended(page, 0), attended(page, 1)] == [in_prompt(made, step) for made in runs]
        page.locator(".kv-prompt .kv-panel").nth(1).press("ArrowRight")
        assert attended(page, 0) == in_prompt(runs[0], 2) != in_prompt(runs[0], 1)
        shown = page.locator(".kv-numbers .kv-number").all_inner_texts()
        for made, numbers in zip(runs, (shown[:6], shown[6:]), strict=True):
            assert numbers[:2] == [f"{made.recall(2, 2)[0]:.2f}", f"{made.attention_mass(2, 2)[0]:.2f}"]
            assert numbers[2] == str((made.indices(2, 2)[0] >= 0).sum())
        numbers = page.locator(".kv-number, .kv-mean, output, .kv-labels > span:not(:first-child)")
        assert numbers.evaluate_all("nodes => nodes.filter(node => !node.closest('[data-meaning]')).length") == 0
        background, text = brightness(page, ".kvviz", "backgroundColor"), brightness(page, ".kvviz", "color")
        assert (background > 200 > 100 > text) if scheme == "light" else (background < 60 < 180 < text)


def test_tokens_and_labels_are_not_markup(browser, path):
    with opened(browser, path) as page:
        for number, made in enumerate(two().values()):
            spans = page.locator(".kv-column").nth(number).locator("[data-position]")
            assert spans.evaluate_all("spans => spans.map(span => span.textContent)") == made.tokens
        assert page.locator(".kvviz img, .kvviz script, .kvviz b").count() == 0
        expect(page.get_by_role("heading", name="second <b>")).to_be_visible()


def test_three_marks_differ_without_colour(browser, path):
    with opened(browser, path) as page:
        looks = {
            mark: page.locator(f".kv-prompt .kv-{mark}:not(.kv-kept)").first.evaluate(LOOK)
            for mark in ("agreed", "missed", "wasted")
        }
        assert looks == {
            "agreed": [True, False, False], "missed": [False, True, False], "wasted": [False, False, True]
        }  # fmt: skip
        assert page.locator(".kv-map canvas").first.evaluate(COLOURS) > 8


def test_tints_are_as_strong_as_the_attention(browser, path):
    made = two()["first"]
    with opened(browser, path) as page:
        agreed = page.locator(".kv-column").first.locator(".kv-prompt .kv-agreed")
        shown = agreed.evaluate_all(
            "nodes => nodes.map(node => [Number(node.dataset.position), getComputedStyle(node).backgroundColor])"
        )
    alpha = {position: float(colour.rstrip(")").split("/")[1]) for position, colour in shown}
    weights = made.attention(0, 2)[0]
    ordered = sorted(alpha, key=lambda position: weights[position])
    strengths = [alpha[position] for position in ordered]
    assert strengths == sorted(strengths)
    assert len(set(strengths)) >= 3


def test_merged_tokens_differ_from_missed_ones(browser, tmp_path):
    made = replay(made_trace(120), "centroidkv", queries=4, budget=40, sinks=4, recent=8)
    MethodComparer({"merging": made}, layer=3, step=2).to_html(tmp_path / "page.html")
    best, chosen = (set(array[0][array[0] >= 0].tolist()) for array in (made.oracle(2, 3), made.indices(2, 3)))
    joined = set(np.flatnonzero(made.merged_share(2, 3)[0] >= 0.5).tolist())  # the centroid gives half of the weight
    assert min(len((best - chosen) & joined), len(best - chosen - joined)) > 2
    with opened(browser, tmp_path / "page.html") as page:
        for mark, expected in (("kv-merged", (best - chosen) & joined), ("kv-missed", best - chosen - joined)):
            marked = page.locator(f".kv-column .{mark}[data-position]").evaluate_all(ATTENDED)
            assert set(marked) == expected
        expect(page.locator(".kv-legend")).to_contain_text("merged")
        looks = [page.locator(f".kv-legend .{mark}").evaluate(DASHED) for mark in ("kv-merged", "kv-missed")]
        assert looks == ["dashed", "none"]


def test_columns_sort_by_any_number_and_follow_the_step(browser, tmp_path):
    runs = many(4)
    MethodComparer(runs).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        assert order(page) == list(runs)
        recalls, sort = page.evaluate(PATHS), page.get_by_label("sort by")
        sort.select_option("recall")
        slider = page.get_by_role("slider", name="decode step")
        orders = []
        for step in range(6):
            orders.append(order(page))
            assert orders[-1] == sorted(runs, key=lambda name: -runs[name].recall(step, 2)[0])
            slider.press("ArrowRight")
        assert len(set(map(tuple, orders))) > 1
        assert page.evaluate(PATHS) == recalls
        sort.select_option("mean read")
        assert order(page) == sorted(runs, key=lambda name: runs[name].events[2].read_bytes.mean())
        assert page.evaluate(PATHS) != recalls  # the curves show the number that sorts
        expect(page.locator(".kv-sheet code")).to_contain_text('head=0, sort="mean read")')


def test_many_columns_scroll_sideways_below_their_labels(browser, tmp_path):
    MethodComparer(many(6)).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        label, last = page.locator(".kv-labels").get_by_text("recall", exact=True), page.locator(".kv-column").last
        before = label.bounding_box()
        assert last.bounding_box()["x"] > 960
        last.scroll_into_view_if_needed()
        assert last.bounding_box()["x"] < 960
        assert label.bounding_box()["x"] == before["x"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 960
        controls = page.locator(".kvviz").locator("button:visible, input:visible, select:visible, summary:visible")
        assert controls.and_(page.locator(":not(.kv-headcell)")).count() == 7  # and the map of heads


def test_one_prompt_scrolls_all_and_a_click_on_the_map_moves_them(browser, tmp_path):
    runs = many(3, prompt_length=3000)
    MethodComparer(runs).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        chosen = [
            (made.attention(0, 2)[0, position], position)
            for made in runs.values()
            for position, group in zip(made.indices(0, 2)[0], made.groups(0, 2)[0], strict=True)
            if group >= 0
        ]
        opened_at = page.locator(f".kv-prompt [data-position='{max(chosen)[1]}']")
        for number in range(3):
            expect(opened_at.nth(number)).to_be_in_viewport()
        panel = page.locator(".kv-prompt .kv-panel").nth(1)
        panel.hover()
        for distance in (700, 900, -400):
            page.mouse.wheel(0, distance)
            page.wait_for_timeout(300)
        tops = page.evaluate(TOPS)
        assert len(set(tops)) == 1
        assert tops[0] > 0
        canvas = page.locator(".kv-map canvas").last
        box = canvas.bounding_box()
        canvas.click(position={"x": box["width"] - 4, "y": box["height"] * 3.5 / 6})
        expect(page.get_by_role("slider", name="decode step")).to_have_value("3")
        (picked,) = set(page.locator("[data-lit]").evaluate_all(ATTENDED))
        assert 2900 < picked < 3000
        for number in range(3):
            expect(page.locator(".kv-column").nth(number).locator(f"[data-position='{picked}']")).to_be_in_viewport()
        page.locator(".kv-column").nth(0).locator(f"[data-position='{picked + 1}']").hover()
        assert page.locator("[data-lit]").evaluate_all(ATTENDED) == [picked + 1] * 3
        expect(page.get_by_role("tooltip")).to_contain_text(f"{picked + 1:,}")


@pytest.mark.slow
@pytest.mark.parametrize("token", [40, 2500, 3003])
def test_the_texts_open_at_the_requested_token(browser, tmp_path, token):
    comparer = MethodComparer(many(3, prompt_length=3000), token=token)
    comparer.to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        for number in range(3):
            at = page.locator(".kv-column").nth(number).locator(f"[data-position='{token}']")
            expect(at).to_have_attribute("data-lit", "")
            column = at.evaluate(
                "node => [node, node.closest('.kv-panel')].map(element => element.getBoundingClientRect().toJSON())"
            )
            assert column[1]["top"] <= column[0]["top"] <= column[0]["bottom"] <= column[1]["bottom"]
        code = page.locator(".kv-sheet code")
        expect(code).to_have_text(f"kvviz.widgets.MethodComparer(recordings, step=0, layer=2, head=0, token={token})")
        page.locator("[data-position='5']").first.hover()  # outlines another token while the pointer is there
        page.locator("h2").hover()
        assert page.locator("[data-lit]").evaluate_all(ATTENDED) == [token] * 3
        canvas = page.locator(".kv-map canvas").last
        canvas.click(position={"x": canvas.bounding_box()["width"] - 1, "y": 2})
        expect(code).not_to_contain_text(f"token={token})")
        lit = page.locator("[data-lit]").evaluate_all(ATTENDED)
        expect(code).to_contain_text(f"token={lit[0]})")
        assert len(lit) == 3


def test_layers_and_heads_of_the_page_and_a_narrow_window(browser, path):
    runs = list(two().values())
    with opened(browser, path, width=500) as page:
        pick_head(page, 3, 0)
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3, head=0")
        pick_head(page, 3, 1)
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3, head=1")
        assert attended(page, 1) == in_prompt(runs[1], 0, layer=3, head=1)
        first, second = (page.locator(".kv-column").nth(number).bounding_box() for number in (0, 1))
        assert second["y"] >= first["y"] + first["height"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_the_screenshot_shows_every_column(browser, tmp_path):
    MethodComparer(many(6)).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        page.get_by_text("Save", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as PNG").click()
        assert download.value.suggested_filename == "method-comparer-step-0-layer-2-head-0.png"
        download.value.save_as(tmp_path / "saved.png")
        data = (tmp_path / "saved.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        hidden = page.locator(".kv-columns").evaluate("node => node.scrollWidth - node.clientWidth")
        assert hidden > 200
        shown = page.locator(".kvviz").bounding_box()["width"]
        assert shown == 960
        assert int.from_bytes(data[16:20], "big") == 2 * (shown + hidden)
        assert len(data) > 50_000
