"""Layers with a sliding window in all widgets: shown as such in menus and maps, never picked."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import kvviz
from kvviz.errors import InvalidInputError
from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MechanismStepper, MethodComparer
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.tiny_models import letters_tokenizer, make, prompt
from tests.widgets.javascript import returned
from tests.widgets.test_browser import opened

WINDOW = "sliding window of 16: attends to its window only"
NOTE = "Layers 0, 2 have a sliding window of 16: each attends to its window only, and no method serves it."
FIELDS = {"budget": 64, "dense_layers": 0}


@pytest.fixture(scope="module")
def trace():
    lm = kvviz.LanguageModel(make("gemma3"), letters_tokenizer(), name="hybrid")
    return kvviz.capture(lm, prompt(200))


@pytest.fixture(scope="module")
def widgets(trace):
    recording = kvviz.replay(trace, "quest", queries=8, **FIELDS)
    return {
        "stepper": DecodeStepper(recording),
        "comparer": MethodComparer([recording, kvviz.replay(trace, "oracle", queries=8, **FIELDS)]),
        "explorer": BudgetExplorer(trace, method="quest", **FIELDS),
        "inspector": ClusterInspector(trace, budget=64),
        "mechanism": MechanismStepper(trace, "quest", **FIELDS),
    }


@pytest.mark.parametrize("name", ["stepper", "comparer", "explorer", "inspector", "mechanism"])
def test_every_widget_marks_the_layers_and_offers_the_others(widgets, name):
    page = widgets[name].page
    assert page["windows"] == {"0": WINDOW, "2": WINDOW}
    assert page["layers"] == [1, 3]
    assert NOTE in page["notes"]
    assert widgets[name].layer in (1, 3)
    with pytest.raises(InvalidInputError):
        widgets[name].layer = 2


@pytest.mark.parametrize("name", ["stepper", "comparer", "mechanism"])
def test_a_caption_says_how_many_layers_the_budget_governs(widgets, name):
    page = widgets[name].page
    assert "budget 64 in 2 of 4 layers" in (page["title"] if name == "mechanism" else page["description"])


def test_a_menu_of_layers_has_those_with_a_window_but_none_to_pick():
    page = {"layers": [1, 3], "windows": {"0": WINDOW, "2": WINDOW}}
    options = returned("place_pickers.js", "layerOptions", page)
    assert options == [["0", f"layer 0, {WINDOW}", "disabled"], "1", ["2", f"layer 2, {WINDOW}", "disabled"], "3"]
    assert returned("place_pickers.js", "layerOptions", {"layers": [3, 5]}) == ["3", "5"]


@pytest.mark.browser
@pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
def test_the_map_shows_a_layer_with_a_window_and_does_not_pick_it(widgets, browser, tmp_path):
    widgets["stepper"].to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html") as page:
        expect(page.get_by_text(NOTE)).to_be_visible()
        cells = page.get_by_role("grid", name="map of the heads").get_by_role("gridcell")
        expect(cells).to_have_count(4 * 3)  # two KV heads and their union
        assert cells.evaluate_all("cells => cells.filter((cell) => cell.ariaDisabled).length") == 2 * 3
        cell = page.get_by_role("gridcell", name=f"layer 2, KV head 0: {WINDOW}")
        expect(cell).to_have_attribute("aria-disabled", "true")
        cell.click(force=True)
        expect(page.locator(".kv-headsaid")).to_have_text(f"layer 2, KV head 0: data {WINDOW}")
        assert page.locator(".kv-headmap [data-picked]").get_attribute("aria-label").startswith("layer 1,")
        expect(page.get_by_text("dashed: sliding windows")).to_be_visible()
