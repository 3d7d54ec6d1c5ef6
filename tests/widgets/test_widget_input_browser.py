"""Hostile and long input, the keyboard and the legends of the four widgets, as pages in a real Chromium."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MethodComparer
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.synthetic import recording
from tests.widgets.test_browser import opened
from tests.widgets.test_widget_input import LONG, hostile_tokens, made_trace, page_of, widgets

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

NAMES = ("DecodeStepper", "MethodComparer", "ClusterInspector", "BudgetExplorer")
TEXT = ".kv-prompt .kv-strip, .kv-explorer-text .kv-strip"
# Of the pairs "&amp;", " word" on one line: how many run from right to left, and whether there are more than 5.
TURNED = r"""(strip) => {
    const words = [...strip.querySelectorAll("[data-position]")].filter((span) => span.textContent === " word");
    const pairs = words.map((span) => [span.previousSibling, span].map((each) => each.getClientRects()[0]));
    const beside = pairs.filter(([before, after]) => Math.abs(before.top - after.top) < 4);
    return [beside.filter(([before, after]) => after.left <= before.left).length, beside.length > 5];
}"""
FOCUSED = """() => {
    const node = document.activeElement, style = getComputedStyle(node);
    const name = node.getAttribute("aria-label") ?? node.closest("label")?.textContent ?? node.textContent;
    const role = node.getAttribute("role") ?? node.type ?? node.tagName.toLowerCase();
    const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
    return node === document.body ? null : { role, name: name.trim(), ring };
}"""
REACHABLE = """root => [...root.querySelectorAll("button, input, select, summary, [tabindex]")]
    .filter(node => node.checkVisibility() && !node.disabled && node.tabIndex >= 0).length"""
# Role and name of every control and panel, in Tab order.
TABS = {
    "DecodeStepper": [
        ("summary", "Settings"), ("summary", "Save"), ("button", "next step (→)"), ("button", "play (space)"),
        ("range", "decode step"), ("search", "find text in the prompt"), ("region", "prompt"),
        ("listbox", "clusters recalled, best score first"), ("region", "written so far"),
    ],
    "MethodComparer": [
        ("select-one", "sort by"), ("summary", "Settings"), ("summary", "Save"), ("button", "next step (→)"),
        ("range", "decode step"), ("search", "find text in the prompt"),
        ("application", "one: one row per step, one column per position"), ("region", "one: prompt"),
        ("region", "one: answer"), ("region", "two: prompt"), ("region", "two: answer"),
    ],
    "ClusterInspector": [
        ("summary", "Settings"), ("summary", "Save"), ("button", "previous step (←)"), ("range", "decode step"),
        ("range", "number of clusters C"),
        ("application", "map of the keys: arrow keys move between centroids, Enter picks one, Escape clears it, "
                        "+ and − zoom, 0 shows all"),
        ("search", "find text in the prompt"), ("region", "prompt"),
        ("listbox", "clusters by q·centroid, best first"), ("button", "All clusters"),
    ],
    "BudgetExplorer": [
        ("select-one", "measure"), ("summary", "Settings"), ("summary", "Save"), ("range", "budget"),
        ("range", "sinks"), ("search", "find text in the prompt"), ("region", "text with the attended tokens"),
    ],
}  # fmt: skip
LOOK = """node => {
    const style = getComputedStyle(node), clear = ["rgba(0, 0, 0, 0)", "transparent"];
    return {
        filled: !clear.includes(style.backgroundColor),
        outlined: style.boxShadow !== "none" || parseFloat(style.borderTopWidth) > 0,
        hatched: style.backgroundImage.includes("repeating-linear-gradient"),
    };
}"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page of each widget with hostile tokens, by name."""
    folder = tmp_path_factory.mktemp("pages")
    for name, widget in widgets(hostile_tokens(200)).items():
        (folder / f"{name}.html").write_text(page_of(widget), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_hostile_tokens_are_not_markup_and_do_not_reverse_text(browser, pages, name):
    shown = [token.replace("\ud83d", "\ufffd") for token in hostile_tokens(200)]
    with opened(browser, pages[name]) as page:
        strip = page.locator(TEXT).first
        spans = strip.locator("[data-position]")
        assert spans.evaluate_all("spans => spans.map(span => span.textContent)") == shown[: spans.count()]
        assert page.locator(".kvviz img, .kvviz script").count() == 0
        for position in range(len(set(shown))):
            spans.nth(position).dispatch_event("pointerover", {"bubbles": True})  # some have no width to hover over
            tip = page.get_by_role("tooltip").locator(".kv-value").first
            expect(tip).not_to_be_empty()
            assert not set(tip.inner_text()) & set("\u202e\u2069\x00")
        assert strip.evaluate(TURNED) == [0, True]
        assert "\u202e" not in "".join(page.locator(".kv-first, .kv-about, .kv-fed").all_text_contents())
        assert page.evaluate("window.hacked") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= 960


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_control_is_reached_by_tab_has_a_name_and_shows_the_focus(browser, pages, name):
    with opened(browser, pages[name]) as page:
        reached = []
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate(FOCUSED)
            if focused is None:
                break
            reached.append(focused)
        expected = TABS[name]
        named = [(control["role"], control["name"]) for control in reached]
        assert [control for control in named if control in expected] == expected
        assert len(named) == page.locator(".kvviz").evaluate(REACHABLE)
        assert [control for control in reached if not control["name"] or not control["ring"]] == []


@pytest.mark.parametrize("name", ["DecodeStepper", "MethodComparer", "BudgetExplorer"])
def test_legends_tell_agreed_missed_and_wasted_apart_without_colour(browser, pages, name):
    with opened(browser, pages[name]) as page:
        legend = page.locator(".kv-legend").last
        looks = {mark: legend.locator(f".kv-{mark}").first.evaluate(LOOK) for mark in ("agreed", "missed", "wasted")}
        assert looks["agreed"] == {"filled": True, "outlined": False, "hatched": False}
        assert looks["missed"] == {"filled": False, "outlined": True, "hatched": False}
        assert looks["wasted"]["hatched"]
        assert not looks["wasted"]["outlined"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_thousand_tokens_show_a_window_that_keys_move(browser, tmp_path, name):
    tokens = [f" word{place}" for place in range(LONG)]
    made = long_widget(name, tokens)
    (tmp_path / "page.html").write_text(page_of(made), encoding="utf-8")
    assert (tmp_path / "page.html").stat().st_size < 20_000_000
    with opened(browser, tmp_path / "page.html") as page:
        if name == "BudgetExplorer":
            expect(page.locator(".kv-note").first).to_contain_text("the first 8,192 of the trace's 100,000 tokens")
            return
        note, strip = page.locator(".kv-prompt .kv-window").first, page.locator(TEXT).first
        length = LONG - (32 if name == "ClusterInspector" else 6)
        expect(note).to_contain_text(f"of {length:,}.")
        assert page.locator(".kvviz [data-position]").count() < 41_000
        first = int(strip.locator("[data-position]").first.get_attribute("data-position"))
        for button, way in (("show later tokens", 1), ("show earlier tokens", -1)):
            move = page.get_by_role("button", name=button).first
            if move.is_disabled():
                continue
            move.press("Enter")
            now = int(strip.locator("[data-position]").first.get_attribute("data-position"))
            assert (now - first) * way > 0
            expect(note).to_contain_text(f"Showing tokens {now:,} to ")
            first = now
        assert strip.evaluate("node => { node.scrollTop = 1e9; return node.scrollTop; }") > 10_000
        before = page.locator("h2, output").all_inner_texts()
        page.get_by_role("slider").first.press("ArrowRight")
        assert (page.locator("h2, output").all_inner_texts() != before) == (name != "ClusterInspector")


def long_widget(name, tokens):
    if name in ("DecodeStepper", "MethodComparer"):
        made = recording(prompt_length=LONG - 6, tokens=tokens, layers=(2,), heads=1)
        return DecodeStepper(made) if name == "DecodeStepper" else MethodComparer({"one": made, "two": made})
    trace = made_trace(LONG, tokens=tokens, kv_heads=1, group=1, width=4, layers=(3,))
    if name == "ClusterInspector":
        return ClusterInspector(trace, n_clusters=3)
    return BudgetExplorer(trace, method="oracle", budget=64)  # without fields to slide: a small page
