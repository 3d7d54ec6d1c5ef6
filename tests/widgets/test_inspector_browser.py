"""The cluster inspector in a real Chromium: as a page without a kernel or a network, and live in JupyterLab."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz.generation.explore import cluster_keys, group_keys
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
        slider.press("ArrowLeft")
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
        assert facts[1:4] == [str(clustering.sizes[cluster]), f"{clustering.spread[cluster]:.2f}",
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
            "nodes => nodes.filter(node => !node.closest('[data-meaning], .kv-facts')).length"
        )
        assert untitled == 0
        assert page.locator(".kv-number:not([data-meaning] *)").count() == 0


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
        page.get_by_text("Save", exact=True).press("Enter")
        call = f'layer=2, head=0, n_clusters=8, metric="cosine", seed=0, token={token}, queries=32, budget=90)'
        expect(page.locator(".kv-sheet code")).to_have_text(f"kvviz.widgets.ClusterInspector(trace, {call}")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as PNG").click()
        assert download.value.suggested_filename == "cluster-inspector-layer-2-head-0-clusters-8.png"
        download.value.save_as(tmp_path / "saved.png")
        data, box = (tmp_path / "saved.png").read_bytes(), page.locator(".kvviz").bounding_box()
        assert int.from_bytes(data[16:20], "big") == round(2 * box["width"])
        assert len(data) > 50_000  # map and text, not an empty picture


def bars(page):
    """Group and state of each bar of the ranking, from the best."""
    found = page.locator(".kv-rankbar").evaluate_all(
        "nodes => nodes.map(node => [node.ariaLabel.match(/#(\\d+)/)[1], node.className.split('kv-rank-')[1]])"
    )
    return [(int(group), kind) for group, kind in found]


def expected_bars(groups, step):
    scores = np.where(groups.sizes > 0, groups.scores[step], np.nan)
    order = [int(group) for group in np.argsort(-scores, kind="stable") if not np.isnan(scores[group])]
    whole, cut = groups.recalled[step] == groups.sizes, groups.cut[step]
    kinds = ["none" if rank >= cut else "whole" if whole[group] else "part" for rank, group in enumerate(order)]
    return list(zip(order, kinds, strict=True))


def test_query_and_ranking_follow_the_step(browser, hostile):
    trace, path, token = hostile
    groups = cluster_keys(trace, 2, 0, n_clusters=8, budget=90)
    with opened(browser, path) as page:
        step, marks = page.get_by_role("slider", name="decode step"), page.locator(".kv-keymap canvas").nth(1)
        heading, number = page.locator(".kv-ranks h3"), step.input_value()
        assert number == "31"
        pictures = set()
        for press, at in (("Home", 0), ("ArrowRight", 1), (None, 2), ("ArrowLeft", 1)):
            if press is None:
                page.get_by_role("button", name="next step").click()
            else:
                page.locator(".kv-prompt .kv-panel").press(press)  # anywhere except on the map and the bars
            expect(heading).to_contain_text(f"step {at}: 8 clusters by q·centroid")
            assert step.input_value() == str(at)
            assert bars(page) == expected_bars(groups, at)
            pictures.add(marks.evaluate(PICTURE))
            rank = [group for group, _ in bars(page)].index(groups.labels[token]) + 1
            assert f"#{groups.labels[token]} on rank {rank} of 8" in step.get_attribute("aria-valuetext")
            assert page.locator(".kv-stepbar").nth(at).get_attribute("data-now") is not None
        assert len(pictures) == 3  # the star is elsewhere at each step
        expect(page.locator(".kv-sheet code").last).to_contain_text(", step=1, queries=32")


def test_the_cut_is_a_line_and_words(browser, hostile):
    trace, path, _ = hostile
    groups = cluster_keys(trace, 2, 0, n_clusters=8, budget=90)
    with opened(browser, path) as page:
        page.get_by_role("slider", name="decode step").press("Home")
        kinds, cut = expected_bars(groups, 0), groups.cut[0]
        (trimmed,) = [group for group, kind in kinds if kind == "part"]
        assert page.locator(".kv-rankbar[data-cut]").count() == 1
        assert page.locator(".kv-rankbar").nth(cut - 1).get_attribute("data-cut") is not None
        expect(page.locator(".kv-rankwords")).to_have_text(
            f"{cut - 1} of 8 clusters recalled whole, cluster #{trimmed} trimmed to {groups.recalled[0, trimmed]} of "
            f"{groups.sizes[trimmed]} tokens: the line is where the budget of 90 tokens ends."
        )
        look = "node => getComputedStyle(node.querySelector('.kv-rankfill'))"
        fills = page.locator(".kv-rankbar").evaluate_all(
            f"nodes => nodes.map({look}).map(style => [style.backgroundColor, style.backgroundImage])"
        )
        states = {kind: (colour != "rgba(0, 0, 0, 0)", image != "none")
                  for (_, kind), (colour, image) in zip(kinds, fills, strict=True)}  # fmt: skip
        assert states == {"whole": (True, False), "part": (True, True), "none": (False, False)}  # without colour, too


def test_bars_are_picked_by_click_and_keys(browser, hostile):
    trace, path, _ = hostile
    groups = cluster_keys(trace, 2, 0, n_clusters=8, budget=90)
    with opened(browser, path) as page:
        order = [group for group, _ in bars(page)]
        page.locator(".kv-rankbar").nth(5).click()
        assert chosen(page) == groups.members(order[5]).tolist()
        expect(page.locator(".kv-facts .kv-id")).to_have_text(f"#{order[5]}")
        ranking = page.get_by_role("listbox")
        ranking.press("ArrowRight")
        ranking.press("ArrowRight")
        lit = page.locator(".kv-prompt [data-lit]").evaluate_all(ATTENDED)
        assert lit == groups.members(order[1]).tolist()
        expect(page.locator("p.kv-spoken")).to_contain_text(f"cluster #{order[1]}, rank 2 of 8, q·centroid")
        ranking.press("Enter")
        assert chosen(page) == groups.members(order[1]).tolist()
        selected = page.locator(".kv-rankbar[aria-selected=true]")
        expect(selected).to_have_count(1)
        expect(selected).to_contain_text(f"#{order[1]}")


def test_four_hundred_bars_are_one_tab_stop_in_a_panel_that_scrolls(browser, tmp_path):
    inspector = ClusterInspector(made_trace(900), n_clusters=400)
    inspector.to_html(tmp_path / "page.html", n_clusters=[])
    with opened(browser, tmp_path / "page.html") as page:
        count = page.locator(".kv-rankbar").count()
        assert count == (inspector.source.clusters(inspector.settings).sizes > 0).sum() > 300
        assert page.locator(".kv-ranking [tabindex='0']").count() == 1
        assert page.locator(".kv-rankbar").evaluate_all("bars => Math.min(...bars.map(bar => bar.offsetWidth))") >= 7
        panel = page.locator(".kv-ranking")
        page.get_by_role("listbox").press("End")
        assert panel.evaluate("node => node.scrollLeft") > 500
        expect(page.locator(".kv-rankbar").last).to_be_in_viewport()
        assert page.evaluate("document.documentElement.scrollWidth") <= 960


def test_the_map_zooms_and_lets_the_page_scroll(browser, hostile):
    _, path, _ = hostile
    with opened(browser, path) as page:
        keymap, below = page.locator(".kv-keymap"), page.locator(".kv-keymap canvas").first
        whole, before = below.evaluate(PICTURE), chosen(page)
        page.set_viewport_size({"width": 960, "height": 620})
        keymap.hover()
        page.mouse.wheel(0, 120)  # the wheel alone scrolls the page
        expect(page.locator("h2")).not_to_be_in_viewport()
        assert below.evaluate(PICTURE) == whole
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        expect(keymap).to_have_attribute("data-zoom", "2.72")
        zoomed = below.evaluate(PICTURE)
        assert zoomed != whole
        box = keymap.bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(*middle)
        page.mouse.down()
        page.mouse.move(middle[0] - 80, middle[1] - 60, steps=4)
        page.mouse.up()
        assert below.evaluate(PICTURE) != zoomed  # moved
        assert chosen(page) == before  # and nothing picked
        keymap.press("0")
        assert below.evaluate(PICTURE) == whole
        for make in (lambda: keymap.press("+"), lambda: page.get_by_role("button", name="zoom in").click()):
            make()
            assert below.evaluate(PICTURE) != whole
            page.get_by_role("button", name="show all keys").click()
            assert below.evaluate(PICTURE) == whole
        expect(page.get_by_role("button", name="zoom out")).to_be_disabled()
        assert "Ctrl and the wheel" in page.locator(".kv-keys h3").get_attribute("data-meaning")


def test_text_is_found_across_tokens(browser, tmp_path):
    words = [f" word{at % 17}" for at in range(300)]
    words[100:103] = [" Se", "cret", " plan"]
    words[200:202] = [" secret", "s"]
    ClusterInspector(made_trace(300, tokens=words), n_clusters=4, token=0).to_html(
        tmp_path / "page.html", n_clusters=[]
    )
    found = ".kv-prompt [data-found]"
    with opened(browser, tmp_path / "page.html") as page:
        field, marks = page.get_by_role("searchbox"), page.locator(".kv-keymap canvas").nth(1)
        said, before = page.locator(".kv-found"), marks.evaluate(PICTURE)
        assert said.get_attribute("role") == "status"
        field.fill("secret")
        expect(said).to_have_text("match 1 of 2, position 100")
        assert page.locator(found).evaluate_all(ATTENDED) == [100, 101, 200]
        first = marks.evaluate(PICTURE)
        assert first != before
        field.press("Enter")
        expect(said).to_have_text("match 2 of 2, position 200")
        expect(page.locator("[data-position='200']")).to_be_in_viewport()
        assert marks.evaluate(PICTURE) != first
        field.press("Shift+Enter")
        expect(said).to_have_text("match 1 of 2, position 100")
        page.get_by_role("button", name="next match").click()
        expect(said).to_have_text("match 2 of 2, position 200")
        field.fill("nowhere")
        expect(said).to_have_text("no match")
        assert page.locator(found).count() == 0
        field.press("Escape")
        assert field.input_value() == ""
        assert marks.evaluate(PICTURE) == before
        field.press("ArrowLeft")  # moves the caret, not the step
        expect(page.locator(".kv-ranks h3")).to_contain_text("step 31:")


def test_the_map_along_the_query_follows_the_step_without_a_kernel(browser, hostile):
    _, path, _ = hostile
    with opened(browser, path) as page:
        below, axes = page.locator(".kv-keymap canvas").first, page.locator(".kv-keys .kv-axis").first
        page.get_by_text("Settings", exact=True).click()
        picker = page.get_by_label("map", exact=True)
        assert picker.locator("option").all_inner_texts() == ["PCA", "along the query"]  # t-SNE was not shown
        picker.select_option("query")
        expect(axes).to_contain_text("direction of the query at step 31 (")
        expect(page.locator(".kv-limits")).to_contain_text("From left to right q·k grows")
        last = below.evaluate(PICTURE)
        page.get_by_role("slider", name="decode step").press("Home")
        expect(axes).to_contain_text("direction of the query at step 0 (")
        assert below.evaluate(PICTURE) != last


VIEW_FIELDS = {"pages": {"page_size": 8}, "codes": {"n_bits": 3}, "lists": {"list_ratio": 1.0}}


def test_pages_codes_and_lists_are_groups_too(browser, tmp_path):
    trace = made_trace(400)
    fields = {name: value for view in VIEW_FIELDS.values() for name, value in view.items()}
    ClusterInspector(trace, n_clusters=8, fields=fields).to_html(tmp_path / "page.html", n_clusters=[])
    with opened(browser, tmp_path / "page.html") as page:
        page.get_by_text("Settings", exact=True).click()
        for view, title in (
            ("pages", "in 46 pages"),
            ("codes", "in 8 codes of part 0 (0 to 1)"),
            ("lists", "in 23 lists"),
        ):
            page.get_by_label("groups", exact=True).select_option(view)
            expect(page.locator("h2")).to_contain_text(title)
            page.get_by_role("slider", name="decode step").press("Home")
            groups = group_keys(trace, 2, 0, view, **VIEW_FIELDS[view])
            order = [group for group, _ in bars(page)]
            scores = groups.scores[0]
            assert sorted(order) == np.flatnonzero(~np.isnan(scores) & (groups.sizes > 0)).tolist()
            assert (np.diff(scores[order]) <= 0).all()
            page.locator(".kv-rankbar").nth(2).click()
            assert chosen(page) == groups.members(order[2]).tolist()
            expect(page.locator(".kv-facts .kv-id")).to_have_text(f"#{order[2]}")
            page.get_by_text("Settings", exact=True).click()  # the click on a bar closed it
        page.get_by_role("slider", name="decode step").press("End")
        page.get_by_label("groups", exact=True).select_option("lists")
        expect(page.locator(".kv-rankwords")).to_have_text(
            "All lists of the prompt were replaced by the queries of earlier steps."
        )
        page.get_by_label("groups", exact=True).select_option("codes")
        page.get_by_label("part", exact=True).select_option("1")
        expect(page.locator("h2")).to_contain_text("in 8 codes of part 1 (0 to 1)")
        token = page.locator("[data-position='100']")
        token.click()
        labels = group_keys(trace, 2, 0, "codes", part=1, n_bits=3).labels
        assert chosen(page) == np.flatnonzero(labels == labels[100]).tolist()


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
        assert page.locator(".kv-prompt [data-position]").count() == 8_000
        expect(page.locator("[data-position='29000']")).to_be_in_viewport()
