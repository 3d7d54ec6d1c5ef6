"""The budget explorer in a real Chromium: as a page without a kernel or a network, and live in JupyterLab."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz import replay
from kvviz.widgets import BudgetExplorer
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.recordings import HOSTILE
from tests.generation.test_explore import made_trace
from tests.widgets.test_browser import COLOURS, attended, brightness, opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
CONTROLS = "button:visible, input:visible, select:visible, summary:visible"


def hostile_trace():
    tokens = [HOSTILE[place % len(HOSTILE)] if place % 3 == 0 else f" w{place}" for place in range(200)]
    return made_trace(200, tokens=tokens)


@pytest.fixture(scope="module")
def quest(tmp_path_factory):
    trace = hostile_trace()
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    BudgetExplorer(trace, method="quest", budget=96).to_html(path)
    return trace, path


def replayed(trace, budget, page_size=16, layer=3, head=0):
    recording = replay(trace, "quest", queries=8, budget=budget, page_size=page_size)
    indices = recording.indices(7, layer)[head]
    return indices[indices >= 0].tolist(), recording


MARKED = """positions => positions.every((position) =>
    document.querySelector(`.kv-attended[data-position="${position}"]`))"""


def waited(page, positions):
    """Wait until exactly these tokens are marked as attended."""
    marked = page.locator(".kv-attended[data-position]")
    expect(marked).to_have_count(len(positions))
    marked.first.page.wait_for_function(MARKED, arg=positions)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_arrow_keys_change_budget_numbers_and_pictures(browser, quest, scheme):
    trace, path = quest
    with opened(browser, path, scheme=scheme) as page:
        waited(page, replayed(trace, 96)[0])
        slider = page.get_by_role("slider", name="budget")
        ring = page.locator(".kv-curve-now")
        before = ring.get_attribute("cx")
        slider.press("ArrowRight")
        expect(page.locator(".kv-title")).to_contain_text("budget 128")
        positions, recording = replayed(trace, 128)
        waited(page, positions)
        assert float(ring.get_attribute("cx")) > float(before)
        shown = page.locator(".kv-explorer-numbers .kv-number").all_inner_texts()
        recall = np.mean([recording.recall(step, 3)[0] for step in range(8)])
        assert float(shown[0]) == pytest.approx(recall, abs=6e-4)
        page.locator(".kv-explorer-text .kv-panel").press("ArrowLeft")
        waited(page, replayed(trace, 96)[0])
        page.get_by_role("slider", name="page size").press("ArrowLeft")
        expect(page.locator(".kv-sheet code")).to_contain_text("page_size=8")
        waited(page, replayed(trace, 96, page_size=8)[0])
        controls = page.locator(".kvviz").locator(CONTROLS)
        assert controls.and_(page.locator(":not(.kv-headcell)")).count() <= 7  # and the map of heads
        background, text = brightness(page, ".kvviz", "backgroundColor"), brightness(page, ".kvviz", "color")
        assert (background > 200 > 100 > text) if scheme == "light" else (background < 60 < 180 < text)


def test_a_refused_pair_shows_the_reason(browser, quest):
    trace, path = quest
    with opened(browser, path) as page:
        page.get_by_role("slider", name="page size").press("End")
        expect(page.locator(".kv-explorer-refusal")).to_contain_text("at least 384 tokens")
        assert attended(page) == replayed(trace, 96)[0]  # still the last valid view
        page.get_by_role("slider", name="page size").press("Home")
        expect(page.locator(".kv-explorer-refusal")).to_be_empty()
        waited(page, replayed(trace, 96, page_size=4)[0])


def test_the_three_pictures_show_the_same_tokens(browser, quest):
    _, path = quest
    with opened(browser, path) as page:
        parts = dict(zip(*[page.locator(f".kv-explorer-ledger .kv-entry {part}").all_inner_texts()
                           for part in ("span:nth-of-type(1)", "b")], strict=True))  # fmt: skip
        counted = {mark: page.locator(f".kv-{mark}[data-position]:not(.kv-generated)").count()
                   for mark in ("wasted", "missed")}  # fmt: skip
        assert {name: int(parts.get(name, 0)) for name in counted} == counted
        attending = sum(int(count) for name, count in parts.items() if name != "missed")
        assert attending == page.locator(".kv-attended[data-position]").count()
        assert page.locator(".kv-explorer-map canvas").evaluate(COLOURS) > 5
        page.get_by_label("measure").select_option("error")
        expect(page.locator(".kv-explorer-curve h3")).to_contain_text("lower is better")
        page.get_by_label("measure").select_option("mass")
        method, best = (
            [float(pair.split(",")[1]) for pair in page.locator(f".kv-curve-{name}").get_attribute("points").split()]
            for name in ("own", "oracle")
        )
        assert len(method) == len(best) >= 3
        assert all(above <= below + 0.01 for below, above in zip(method, best, strict=True))  # y grows downwards
        box = page.locator(".kv-explorer-curve svg").bounding_box()
        page.mouse.click(box["x"] + box["width"] - 16, box["y"] + 60)
        expect(page.locator(".kv-title")).to_contain_text("budget 192")


def test_tokens_are_not_markup_and_a_narrow_page_stacks(browser, quest):
    trace, path = quest
    with opened(browser, path, width=500) as page:
        texts = page.locator("[data-position]").evaluate_all("spans => spans.map(span => span.textContent)")
        assert texts == trace.tokens
        assert page.locator(".kvviz img, .kvviz script").count() == 0
        left, right = (page.locator(name).bounding_box() for name in (".kv-explorer-left", ".kv-explorer-pictures"))
        assert right["y"] >= left["y"] + left["height"]
        assert page.evaluate("document.documentElement.scrollWidth") <= 500


def test_the_screenshot_and_the_meanings(browser, quest, tmp_path):
    _, path = quest
    with opened(browser, path) as page:
        numbers = page.locator("output, .kv-number, .kv-entry b").evaluate_all(
            "nodes => nodes.filter(node => !node.closest('[data-meaning]')).length"
        )
        assert numbers == 0
        page.get_by_text("Save", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as PNG").click()
        assert download.value.suggested_filename == "budget-explorer-quest-96-layer-3-head-0.png"
        saved = tmp_path / "saved.png"
        download.value.save_as(saved)
        data = saved.read_bytes()
        assert int.from_bytes(data[16:20], "big") == round(2 * page.locator(".kvviz").bounding_box()["width"])
        assert len(data) > 50_000
