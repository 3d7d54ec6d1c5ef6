"""Texts, maps and lists of the widgets by finger and by keys, and what a screen reader is told."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from kvviz.widgets import BudgetExplorer, DecodeStepper, MethodComparer, view
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
from tests.widgets.test_browser import opened
from tests.widgets.test_layout_browser import NAMES

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
SPOKEN = "p.kv-spoken"


@pytest.fixture(scope="module")
def made():
    return recording()


@pytest.fixture(scope="module")
def paths(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    DecodeStepper(made, layer=3, head=1, step=2).to_html(folder / "stepper.html")
    MethodComparer([made, made.replace(method="quest")], layer=3, head=1, step=2).to_html(folder / "comparer.html")
    BudgetExplorer(made_trace(200), method="quest", budget=96).to_html(folder / "explorer.html")
    return folder


def marked(made, layer=3, head=1, step=2):
    """The positions with a mark, ascending, and the state of each as bits."""
    arrays = view.token_arrays(made, layer, head)
    span = slice(*arrays["offsets"][[step, step + 1]])
    return dict(zip(arrays["positions"][span].tolist(), arrays["marks"][span].tolist(), strict=True))


def tabbed_to(page, selector):
    """Press Tab until the element has the focus, as a person without a mouse does."""
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def test_keys_read_the_text_token_by_token(browser, paths, made):
    with opened(browser, paths / "stepper.html") as page:
        tabbed_to(page, ".kv-prompt .kv-panel")
        page.keyboard.press("ArrowDown")
        first = int(page.locator("[data-cursor]").get_attribute("data-position"))
        tokens = marked(made)
        assert first in tokens
        for by, key in ((1, "ArrowDown"), (-1, "ArrowUp")):
            before = int(page.locator("[data-cursor]").get_attribute("data-position"))
            page.keyboard.press(key)
            (wanted,) = [min((p for p in tokens if (p - before) * by > 0), key=lambda p: abs(p - before))]
            assert page.locator("[data-cursor]").get_attribute("data-position") == str(wanted)
            expect(page.locator(SPOKEN)).to_contain_text(f"position {wanted}")
            state = "attended" if tokens[wanted] & view.ATTENDED else "missed: the oracle would attend to it"
            expect(page.locator(SPOKEN)).to_contain_text(f"state {state}")
        page.keyboard.press("Shift+ArrowDown")
        expect(page.locator(SPOKEN)).to_contain_text(f"position {first + 1}")
        assert page.locator(".kv-step output").inner_text() == "2 / 5"  # these keys are not the step's
        page.keyboard.press("ArrowRight")
        expect(page.locator(".kv-step output")).to_have_text("3 / 5")
        page.keyboard.press("Tab")
        expect(page.locator("[data-cursor]")).to_have_count(0)
        expect(page.locator(".kv-tip")).to_contain_text("one row per step")  # the map's meaning, no token's


def test_keys_read_the_map_and_go_where_they_point(browser, paths):
    with opened(browser, paths / "stepper.html") as page:
        tabbed_to(page, ".kv-map canvas")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        spoken = page.locator(SPOKEN).inner_text()
        assert spoken.startswith("step 2, ")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        expect(page.locator(SPOKEN)).to_contain_text("step 4, ")
        assert page.locator(".kv-step output").inner_text() == "2 / 5"
        page.keyboard.press("Enter")
        expect(page.locator(".kv-step output")).to_have_text("4 / 5")


def test_keys_read_the_recalled_clusters(browser, paths, made):
    with opened(browser, paths / "stepper.html") as page:
        tabbed_to(page, ".kv-clusters")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        rows = page.locator(".kv-clusters [role=option]")
        chosen = rows.nth(1)
        assert chosen.get_attribute("aria-selected") == "true"
        number = chosen.locator(".kv-id").inner_text()
        expect(page.locator(SPOKEN)).to_contain_text(f"cluster {number}, rank 2 of those recalled, score ")
        groups, indices = made.groups(2, 3)[1], made.indices(2, 3)[1]
        members = sorted(indices[groups == int(number[1:])].tolist())
        lit = page.locator(".kv-prompt [data-lit]").evaluate_all("all => all.map(one => Number(one.dataset.position))")
        assert lit == members
        page.keyboard.press("Tab")
        expect(page.locator("[data-lit]")).to_have_count(0)


@pytest.mark.parametrize("name", ["comparer", "explorer"])
def test_texts_and_maps_of_other_widgets_are_read_too(browser, paths, name):
    with opened(browser, paths / f"{name}.html") as page:
        for place in ("canvas", ".kv-strip"):
            tabbed_to(page, place)
            page.keyboard.press("ArrowRight" if place == "canvas" else "ArrowDown")
            expect(page.locator(SPOKEN)).to_contain_text("attention")
            expect(page.locator(".kv-tip")).to_be_visible()


@pytest.mark.parametrize("name", ["stepper", "comparer", "explorer"])
def test_a_tap_on_a_token_shows_its_tip_and_keeps_it(browser, paths, name):
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto((paths / f"{name}.html").as_uri())
    token = page.locator(".kv-attended[data-position]").first
    token.tap()
    tip = page.locator(".kv-tip")
    expect(tip).to_be_visible()
    page.wait_for_timeout(600)  # it must not vanish by itself
    expect(tip).to_be_visible()
    expect(tip).to_contain_text(f"position{int(token.get_attribute('data-position')):,}")
    page.locator(".kv-title").first.tap()
    expect(tip).to_be_hidden()
    page.locator("canvas").first.tap()
    expect(tip).to_be_visible()
    context.close()


def test_a_tip_stays_in_the_window(browser, paths):
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 400})
    page = context.new_page()
    page.goto((paths / "explorer.html").as_uri())
    token = page.locator(".kv-attended[data-position]").first
    for block in ("end", "start"):  # the widget goes on below, and then above
        token.evaluate("(node, block) => node.scrollIntoView({ block })", block)
        page.wait_for_timeout(200)
        token.tap(position={"x": 4, "y": 4})
        expect(page.locator(".kv-tip")).to_be_in_viewport(ratio=1)
    context.close()


STATE = """() => document.querySelector("#kvviz-root").innerHTML
    + [...document.querySelectorAll("select, input")].map((node) => node.value)
    + [...document.querySelectorAll("*")].map((node) => node.scrollTop)"""
KEYS = {"SELECT": ["ArrowDown"], "INPUT": ["ArrowRight"], "BUTTON": ["Enter"], "SUMMARY": ["Enter"]}
LABELLED = {"find": ["w"], "layer": ["ArrowRight", "ArrowDown"]}  # the search field, and a cell of the map of heads
ACTIVE = """() => {
    const node = document.activeElement;
    return [node.tagName, node.ariaLabel ?? (node.labels?.[0] ?? node).textContent, node.options?.length === 1];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_control_does_something_by_keys_alone(browser, widget_pages, name):
    with opened(browser, widget_pages[name]) as page:
        seen = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            kind, label, alone = page.evaluate(ACTIVE)
            label = "layer" if label.startswith("layer ") else label  # the map of heads is one control
            if kind == "BODY" or (kind, label) in seen or alone or "saves" in label or "copies" in label:
                continue
            seen.add((kind, label))
            before = page.evaluate(STATE)
            for key in LABELLED.get(label.split()[0]) or KEYS.get(kind, ["ArrowDown", "ArrowRight"]):
                page.keyboard.press(key)
            page.wait_for_timeout(150)
            assert page.evaluate(STATE) != before, (kind, label)
            if label.startswith("play"):
                page.keyboard.press("Enter")
        assert len(seen) >= 5


def test_recalled_clusters_say_score_rank_and_where_the_budget_cut(browser, tmp_path):
    made = recording(budget=30, steps=12)
    groups, scores, indices = (
        [of_step(step, 3)[1] for step in range(12)] for of_step in (made.groups, made.scores, made.indices)
    )
    whole = {int(group): max((groups[step] == group).sum() for step in range(12)) for group in range(8)}
    DecodeStepper(made, layer=3, head=1).to_html(tmp_path / "page.html")
    cuts = []
    with opened(browser, tmp_path / "page.html") as page:
        rows, scales = page.locator(".kv-clusters li"), []
        for step in range(12):
            numbers = sorted(
                {int(group) for group in groups[step] if group >= 0},
                key=lambda one: -scores[step][groups[step] == one].max(),
            )
            assert rows.locator(".kv-id").all_inner_texts() == [f"#{number}" for number in numbers]
            assert rows.locator(".kv-rank").all_inner_texts() == [f"{place + 1}." for place in range(len(numbers))]
            shown = [float(text) for text in rows.locator(".kv-score").all_inner_texts()]
            assert shown == pytest.approx([scores[step][groups[step] == one].max() for one in numbers], rel=5e-3)
            count, known = int((groups[step] == numbers[-1]).sum()), int(whole[numbers[-1]])
            size = f"{count} of ≥ {known}, cut" if known > count else f"{count} tokens"
            assert rows.last.locator(".kv-size").inner_text() == size
            assert page.locator(".kv-clusters [data-cut]").count() == (known > count)
            cuts.append(known > count)
            mass = made.attention(step, 3)[1][indices[step][groups[step] == numbers[0]]].sum()
            if mass > 0.05:
                scales.append(rows.first.locator(".kv-bar > span").bounding_box()["width"] / mass)
            page.locator(".kv-prompt .kv-panel").press("ArrowRight")
    assert any(cuts)
    assert max(scales) == pytest.approx(min(scales), rel=0.1)
