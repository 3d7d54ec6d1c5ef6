"""The cluster inspector in a real Chromium: as a page without a kernel or a network, and live in JupyterLab."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz.generation.explore import cluster_keys
from kvviz.widgets import ClusterInspector
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.recordings import HOSTILE
from tests.generation.test_explore_clusters import made_trace
from tests.widgets.test_browser import ATTENDED, COLOURS, brightness, opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

PICTURE = "canvas => canvas.toDataURL()"
HOVER = """map => {
    const box = map.getBoundingClientRect(), from = performance.now();
    for (let move = 0; move < 300; move++) {
        const [clientX, clientY] = [box.left + 60 + move, box.top + 200 + 60 * Math.sin(move)];
        map.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY }));
    }
    return (performance.now() - from) / 300;
}"""
SLIDER = "number of clusters C"


def chosen(page):
    """The positions that the text marks as members of the chosen cluster."""
    return page.locator(".kv-prompt .kv-agreed[data-position]").evaluate_all(ATTENDED)


def members(trace, token, **settings):
    labels = cluster_keys(trace, **{"layer": 2, "head": 0} | settings).labels
    return np.flatnonzero(labels == labels[token]).tolist()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    words = [HOSTILE[at % len(HOSTILE)] if at % 3 == 0 else f" word{at % 17}" for at in range(400)]
    trace = made_trace(400, tokens=words)
    inspector = ClusterInspector(trace, n_clusters=8, budget=90)
    path = tmp_path_factory.mktemp("page") / "inspector.html"
    inspector.to_html(path)
    return trace, path, inspector.token


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_slider_changes_the_clusters_without_a_kernel(browser, hostile, scheme):
    trace, path, token = hostile
    with opened(browser, path, scheme=scheme) as page:
        below, slider = page.locator(".kv-keymap canvas").first, page.get_by_role("slider", name=SLIDER)
        assert chosen(page) == members(trace, token, n_clusters=8)
        before = below.evaluate(PICTURE)
        assert below.evaluate(COLOURS) > 20
        slider.press("ArrowRight")
        expect(page.locator("h2")).to_contain_text("in 10 clusters")
        assert chosen(page) == members(trace, token, n_clusters=10)
        assert below.evaluate(PICTURE) != before
        page.locator(".kv-prompt .kv-panel").press("ArrowLeft")  # anywhere except on the map
        expect(page.locator("h2")).to_contain_text("in 8 clusters")
        assert chosen(page) == members(trace, token, n_clusters=8)
        slider.press("End")
        expect(page.locator("h2")).to_contain_text("in 20 clusters")
        background, text = brightness(page, ".kvviz", "backgroundColor"), brightness(page, ".kvviz", "color")
        assert (background > 200 > 100 > text) if scheme == "light" else (background < 60 < 180 < text)


def test_arrow_keys_and_enter_pick_a_cluster_on_the_map(browser, hostile):
    trace, path, token = hostile
    clustering = cluster_keys(trace, 2, 0, n_clusters=8, budget=90)
    with opened(browser, path) as page:
        marks, status = page.locator(".kv-keymap canvas").nth(1), page.get_by_text("Enter picks it")
        before = marks.evaluate(PICTURE)
        keys = page.get_by_role("application")
        for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
            keys.press(key)
            if f"#{clustering.labels[token]}," not in status.inner_text():
                break
        cluster = int(status.inner_text().partition("#")[2].partition(",")[0])
        assert cluster != clustering.labels[token]
        keys.press("Enter")
        expect(page.locator(".kv-facts .kv-id")).to_have_text(f"#{cluster}")
        assert chosen(page) == np.flatnonzero(clustering.labels == cluster).tolist()
        assert marks.evaluate(PICTURE) != before
        facts = page.locator(".kv-facts .kv-number").all_inner_texts()
        assert facts[:3] == [str(clustering.sizes[cluster]), f"{clustering.spread[cluster]:.2f}",
                             f"{(clustering.taken[:, cluster] > 0).sum()} of 32 steps"]  # fmt: skip
        heights = page.locator(".kv-stepbar > span").evaluate_all(
            "bars => bars.map(bar => parseFloat(bar.style.height))"
        )
        np.testing.assert_allclose(heights, 100 * clustering.taken[:, cluster] / clustering.sizes[cluster], rtol=1e-4)
        nearest = [int(text[1:]) for text in page.locator(".kv-rows .kv-id").all_inner_texts()]
        assert nearest == clustering.nearest[cluster].tolist()
        page.locator(".kv-rows .kv-link").first.press("Enter")
        assert chosen(page) == np.flatnonzero(clustering.labels == nearest[0]).tolist()
        keys.press("Escape")
        assert chosen(page) == []
        listed = [int(text[1:]) for text in page.locator(".kv-all .kv-id").all_inner_texts()]
        assert sorted(listed) == np.flatnonzero(clustering.sizes).tolist()
        steps = (clustering.taken > 0).sum(0)[listed]
        assert (np.diff(steps) <= 0).all()


def test_a_click_on_a_dot_or_a_word_picks_its_cluster(browser, hostile):
    trace, path, _ = hostile
    labels = cluster_keys(trace, 2, 0, n_clusters=8).labels
    with opened(browser, path) as page:
        page.locator("[data-position='101']").click()
        assert chosen(page) == np.flatnonzero(labels == labels[101]).tolist()
        page.locator("[data-position='3']").click()  # a sink
        expect(page.locator(".kv-about")).to_contain_text("always attended, in no cluster")
        assert chosen(page) == []
        keymap, tip = page.locator(".kv-keymap"), page.get_by_role("tooltip")
        box = keymap.bounding_box()
        for x, y in np.random.default_rng(0).uniform(0.2, 0.8, size=(200, 2)):
            keymap.hover(position={"x": x * box["width"], "y": y * box["height"]})
            if tip.is_visible() and "position" in tip.inner_text():
                break
        position = int(tip.locator(".kv-value").all_inner_texts()[1])
        page.mouse.down()
        page.mouse.up()
        expected = np.flatnonzero(labels == labels[position]).tolist() if labels[position] >= 0 else []
        assert chosen(page) == expected


def test_tokens_are_not_markup_and_numbers_are_explained(browser, hostile):
    trace, path, _ = hostile
    with opened(browser, path) as page:
        shown = page.locator("[data-position]").evaluate_all("spans => spans.map(span => span.textContent)")
        assert shown == trace.tokens[:368]
        assert page.locator(".kvviz img, .kvviz script, .kvviz b").count() == 0
        page.locator("[data-position='0']").hover()
        expect(page.get_by_role("tooltip")).to_contain_text("·<script>alert(1)</script>")
        untitled = page.locator(".kv-number, output, .kv-id").evaluate_all(
            "nodes => nodes.filter(node => !node.closest('[title]') && !node.closest('.kv-facts')).length"
        )
        assert untitled == 0
        assert page.locator(".kv-number:not([title] *)").count() == 0


def test_a_narrow_page_stacks_its_panels(browser, hostile):
    _, path, _ = hostile
    for width, stacked in ((960, False), (500, True)):
        with opened(browser, path, width=width) as page:
            keys, prompt, about = (page.locator(s).bounding_box() for s in (".kv-keys", ".kv-prompt", ".kv-details"))
            assert (prompt["y"] >= keys["y"] + keys["height"]) == stacked
            assert about["y"] >= prompt["y"] + prompt["height"]
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_screenshot_and_the_call(browser, hostile, tmp_path):
    _, path, token = hostile
    with opened(browser, path) as page:
        page.locator("summary").press("Enter")
        call = f'layer=2, head=0, n_clusters=8, metric="cosine", seed=0, token={token}, queries=32, budget=90)'
        expect(page.locator(".kv-sheet code")).to_have_text(f"kvviz.widgets.ClusterInspector(trace, {call}")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as PNG").click()
        assert download.value.suggested_filename == "cluster-inspector-layer-2-head-0-clusters-8.png"
        download.value.save_as(tmp_path / "saved.png")
        data, box = (tmp_path / "saved.png").read_bytes(), page.locator(".kvviz").bounding_box()
        assert int.from_bytes(data[16:20], "big") == round(2 * box["width"])
        assert len(data) > 50_000  # map and text, not an empty picture


def test_hovering_keeps_up_with_the_screen(browser, tmp_path):
    ClusterInspector(made_trace(4096), n_clusters=200).to_html(tmp_path / "page.html", n_clusters=[])
    with opened(browser, tmp_path / "page.html") as page:
        assert page.locator(".kv-keymap").evaluate(HOVER) < 1000 / 60  # ms per move


@pytest.mark.slow
def test_long_prompts_show_a_window(browser, tmp_path):
    ClusterInspector(made_trace(30_000, layers=(2,)), n_clusters=4, token=29_000).to_html(
        tmp_path / "page.html", n_clusters=[]
    )
    with opened(browser, tmp_path / "page.html") as page:
        expect(page.locator(".kv-prompt .kv-window")).to_contain_text("of 29,968")
        assert page.locator(".kv-prompt [data-position]").count() == 20_000
        expect(page.locator("[data-position='29000']")).to_be_in_viewport()
