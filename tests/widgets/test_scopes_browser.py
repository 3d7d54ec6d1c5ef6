"""What each number is about, and what it means: true marks, and words by pointer, finger and keys."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from playwright.sync_api import expect

from kvviz.widgets import BudgetExplorer, DecodeStepper, MethodComparer, scopes
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.picking import cell, pick_head
from tests.generation.test_explore import made_trace
from tests.synthetic import recording
from tests.widgets.javascript import exported
from tests.widgets.test_browser import opened
from tests.widgets.test_reach_browser import tabbed_to

browser_test = pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
NUMBERS = {
    "stepper": ".kv-figure .kv-number, .kv-clusters .kv-score, .kv-clusters .kv-share",
    "comparer": ".kv-numbers .kv-number, .kv-numbers .kv-mean",
    "explorer": ".kv-explorer-numbers .kv-number, .kv-explorer-ledger b",
    "inspector": ".kv-facts .kv-number, .kv-ranks h3",
    "misses": ".kv-title, .kv-causes .kv-number, .kv-stage, .kv-answerlist dd",
}
# Each number with the words of its mark and of its row.
MARKED = """nodes => nodes.map(node => {
    const marked = node.closest("[data-scope]");
    const name = node.closest("[data-meaning]").dataset.meaning.split(":")[0];
    const tags = [...(marked?.closest("section") ?? marked)?.querySelectorAll(".kv-scope") ?? []];
    return [name, marked?.dataset.scope ?? "", tags.map(tag => tag.textContent).join("; ")];
})"""


def varied():
    """A recording whose numbers all differ between layers, heads and steps."""
    made = recording()
    events = {}
    for layer, of_layer in made.events.items():
        lists = {name: getattr(of_layer, name).copy() for name in ("indices", "groups", "scores")}
        for name, array in lists.items():  # head 1 attends to one token less
            array[:, 1, 4:-1] = array[:, 1, 5:]
            array[:, 1, -1] = np.nan if name == "scores" else -1
        step = np.arange(made.steps)
        moved, read = 1000 * step + 10 * layer, 1_000_000 * step + 100_000 * layer
        events[layer] = dataclasses.replace(of_layer, **lists, moved_bytes=moved, read_bytes=read)
    return made.replace(events=events)


def test_python_and_javascript_have_the_same_words():
    module = exported("scope.js")
    assert [module[name] for name in ("SCOPES", "SCOPE_OF", "OF_UNION")] == [
        scopes.SCOPES, scopes.SCOPE_OF, scopes.OF_UNION,
    ]  # fmt: skip


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_bears_a_mark_and_a_meaning(browser, widget_pages, name):
    with opened(browser, widget_pages[name]) as page:
        found = page.locator(NUMBERS[name]).evaluate_all(MARKED)
        assert len(found) >= 6
        for number, mark, shown in found:
            assert mark, number
            words = scopes.text(*mark.split())
            if name == "comparer":  # its rows have their marks in the first column, or before the number
                words = words.split(",")[0]
                shown += page.locator(".kv-labels").inner_text()
            assert words in shown, number


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize("name", ["stepper", "comparer"])
def test_the_marks_are_true(browser, tmp_path, name):
    made, path = varied(), tmp_path / "page.html"
    widget = DecodeStepper(made) if name == "stepper" else MethodComparer([made])
    widget.to_html(path, layers=[2, 3])

    def shown():
        figures = page.locator(".kv-figure, .kv-numbers").evaluate_all("""nodes => nodes.map(node => [
            node.dataset.meaning.split(":")[0],
            node.closest("[data-scope]").dataset.scope,
            node.querySelector(".kv-number").textContent,
        ])""")
        return {name: (scope.split()[0], text) for name, scope, text in figures}

    with opened(browser, path) as page:
        before = shown()
        assert {"recall", "mass", "attended", "read", "moved"} <= before.keys()
        pick_head(page, 2, 1)
        expect(page.locator(".kv-sheet code")).to_contain_text("head=1")
        changed = {number for number, (_, text) in shown().items() if text != before[number][1]}
        assert changed == {number for number, (scope, _) in before.items() if scope == "head"}
        pick_head(page, 3, 0)
        expect(page.locator(".kv-sheet code")).to_contain_text("layer=3, head=0")
        of_layer = {number for number, (scope, _) in before.items() if scope == "layer"}
        assert of_layer <= {number for number, (_, text) in shown().items() if text != before[number][1]}
        at_layer = shown()
        page.get_by_role("slider", name="decode step").press("ArrowRight")
        later = {number for number, (_, text) in shown().items() if text != at_layer[number][1]}
        assert later == set(before)


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize("name", ["stepper", "comparer"])
def test_the_numbers_of_a_union_are_those_of_all_its_heads(browser, tmp_path, name):
    path, of_union, of_layer = tmp_path / "page.html", scopes.SCOPES["heads"], scopes.SCOPES["layer"]
    widget = DecodeStepper(varied()) if name == "stepper" else MethodComparer([varied()])
    widget.to_html(path, layers=[2])
    with opened(browser, path) as page:
        numbers = page.locator(".kv-stats" if name == "stepper" else ".kv-labels")
        pick_head(page, 2, "union of all KV heads")
        expect(numbers).to_contain_text("mean recall")
        page.locator("h2").hover()
        meanings = numbers.locator("[data-meaning]").evaluate_all("nodes => nodes.map(node => node.dataset.meaning)")
        mean, attended, moved = (
            next(text for text in meanings if f"{number}: " in text) for number in ("recall", "attended", "moved")
        )
        assert mean.startswith("mean over the 2 heads of recall: ")
        assert f"Of: {of_union}" in mean
        assert attended.startswith("attended: tokens that at least one of the 2 heads attends to")
        assert f"Of: {of_union}" in attended
        assert f"Of: {of_layer}" in moved
        assert of_union in numbers.inner_text()
        assert scopes.SCOPES["head"] not in page.locator(".kvviz").inner_text()
        page.locator(".kv-prompt .kv-attended").first.hover()
        expect(page.locator(".kv-tip")).to_contain_text(f"of {of_union}, step 0")
        cell(page, 2, "union of all KV heads").hover()
        expect(page.locator(".kv-tip")).to_contain_text(f"({of_union})")
        expect(page.locator(".kv-tip")).not_to_contain_text("mean over the heads of error")
        pick_head(page, 2, 0)
        expect(numbers).to_contain_text(scopes.SCOPES["head"])
        expect(numbers).not_to_contain_text("mean recall")


def test_the_explorers_marks_are_true():
    explorer = BudgetExplorer(made_trace(200), method="quest", budget=96, dense_layers=1)
    layers = explorer.page["layers"]
    values = {
        (layer, head): explorer._exploration.numbers(explorer._place()._replace(layer=layer, head=head))
        for layer in layers[:2]
        for head in (0, 1)
    }
    first, second = layers[:2]
    keys = {"metadata": "metadata_bytes", "choose": "extra_bytes"}
    for name in ("recall", "mass", "error", "metadata", "choose"):
        of_head, of_other = (values[first, head][keys.get(name, name)] for head in (0, 1))
        assert (of_head == of_other) == (scopes.SCOPE_OF[name] == "layer"), name
    assert values[first, 0]["error"] != values[second, 0]["error"]


@pytest.mark.browser
@browser_test
def test_the_answers_numbers_are_those_of_all_layers_and_a_journey_is_that_of_a_head(browser, widget_pages):
    whole, journey = ".kv-title, .kv-causes, .kv-answerlist dd", ".kv-stage"
    with opened(browser, widget_pages["misses"]) as page:
        for selector, mark in ((whole, "layers answer"), (journey, "head step")):
            marks = page.locator(selector).evaluate_all(
                "nodes => nodes.map(node => node.closest('[data-scope]').dataset.scope)"
            )
            assert set(marks) == {mark}
        seen = [(page.locator(whole).all_inner_texts(), page.locator(journey).all_inner_texts())]
        for move in ("ArrowUp", "ArrowLeft"):  # another head, another layer
            page.locator(".kv-headcell[data-picked]").press(move)
            seen.append((page.locator(whole).all_inner_texts(), page.locator(journey).all_inner_texts()))
        page.get_by_role("button", name="previous step").click()
        seen.append((page.locator(whole).all_inner_texts(), page.locator(journey).all_inner_texts()))
    assert [texts for texts, _ in seen] == [seen[0][0]] * 4
    assert all(before != after for (_, before), (_, after) in pairwise(seen))


@pytest.mark.browser
@browser_test
def test_keys_walk_through_the_numbers_and_escape_closes_the_tip(browser, widget_pages):
    with opened(browser, widget_pages["stepper"]) as page:
        tip, spoken = page.locator(".kv-tip"), page.locator("p.kv-spoken")
        tabbed_to(page, ".kv-stats")
        expect(tip).to_contain_text("the token that this step feeds")
        page.keyboard.press("ArrowDown")
        expect(tip).to_contain_text("recall: share of the oracle's tokens")
        expect(spoken).to_have_text(
            f"recall {page.locator('.kv-figure .kv-number').first.inner_text()}: "
            "recall: share of the oracle's tokens that were attended to; the oracle selects as many tokens as the "
            "method attends to, those with the largest exact weights. Of: this head, this step"
        )
        assert page.locator(".kv-step output").inner_text() == "0 / 5"
        page.keyboard.press("ArrowRight")  # still the step's key
        expect(page.locator(".kv-step output")).to_have_text("1 / 5")
        page.keyboard.press("ArrowDown")
        expect(tip).to_contain_text("mass: share of the exact attention")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        page.keyboard.press("ArrowUp")
        expect(tip).to_contain_text("recall:")
        page.keyboard.press("Tab")
        expect(page.locator("[data-term]")).to_have_count(0)


@pytest.mark.browser
@browser_test
def test_a_panel_with_the_focus_says_what_it_shows_once(browser, widget_pages):
    with opened(browser, widget_pages["stepper"]) as page:
        tabbed_to(page, ".kv-map canvas")
        expect(page.locator("p.kv-spoken")).to_contain_text("one row per step, the first at the top")
        page.keyboard.press("Escape")
        expect(page.locator(".kv-tip")).to_be_hidden()
        tabbed_to(page, ".kv-legend")
        page.keyboard.press("ArrowDown")
        expect(page.locator("p.kv-spoken")).to_contain_text("wasted: selected by the method")


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize("name", NUMBERS)
def test_a_tap_on_a_number_or_a_mark_says_what_it_means(browser, widget_pages, name):
    context = browser.new_context(has_touch=True, is_mobile=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(widget_pages[name].as_uri())
    for selector in (f"{NUMBERS[name].split(',')[0]} >> nth=0", "h3[data-meaning] >> nth=0"):
        node = page.locator(selector)
        if not node.count():
            continue
        node.tap(position={"x": 4, "y": 4})
        expect(page.locator(".kv-tip")).to_be_visible()
        meaning = node.evaluate("node => node.closest('[data-meaning]').dataset.meaning")
        expect(page.locator(".kv-tip")).to_have_text(meaning)
    context.close()


@pytest.mark.browser
@browser_test
@pytest.mark.parametrize(
    ("name", "most"), [("stepper", 2), ("comparer", 2), ("explorer", 4), ("inspector", 3), ("misses", 3)]
)
def test_no_words_depend_on_titles_and_they_add_few_stops(browser, widget_pages, name, most):
    with opened(browser, widget_pages[name]) as page:
        assert page.locator(".kvviz [title]").count() == 0
        assert page.locator("[data-terms], h3[tabindex]").count() == most


@pytest.mark.browser
@browser_test
def test_the_pointer_shows_meanings_but_no_panel_hides_its_tokens_tips(browser, widget_pages):
    with opened(browser, widget_pages["comparer"]) as page:
        tip = page.locator(".kv-tip")
        page.locator(".kv-numbers").first.hover()
        expect(tip).to_contain_text("recall: share of the oracle's tokens")
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        page.locator(".kv-labels").get_by_text("moved").hover()
        expect(tip).to_contain_text("Of: this layer")
        page.locator(".kv-prompt .kv-attended").first.hover()  # its cell has a meaning too
        expect(tip.locator(".kv-term").first).to_have_text("token")
        page.locator("h2").hover()
        expect(tip).to_be_hidden()
