"""All widgets as pages, at the widths of a wide window, a notebook's cell and a telephone."""

from __future__ import annotations

import pytest

from kvviz.trace.diagnosis import Diagnosis
from kvviz.widgets import (
    BudgetExplorer,
    ClusterInspector,
    DecodeStepper,
    MechanismStepper,
    MethodComparer,
    MissInspector,
)
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, ROOT
from tests.browser.recordings import hostile_recording
from tests.generation.test_explore import made_trace
from tests.synthetic import diagnosis, recording
from tests.widgets.predictions import prediction
from tests.widgets.test_browser import opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
OTHERS = ("quest", "pqcache", "ctkvr", "centroidkv", "snapkv", "streaming_llm")  # one of each colour
WIDTHS = (1280, 800, 390)
NAMES = ("stepper", "comparer", "explorer", "inspector", "misses", "mechanism", "prediction")


def widgets():
    made = hostile_recording()
    return {
        "stepper": DecodeStepper(made),
        "comparer": MethodComparer([made, *(made.replace(method=name) for name in OTHERS)]),
        "explorer": BudgetExplorer(made_trace(200), method="quest", budget=96),
        "inspector": ClusterInspector(made_trace(200)),
        "misses": MissInspector(diagnosis()),
        "mechanism": mechanism(),
        "prediction": prediction(),
    }


def mechanism(trace=None):
    """The mechanism stepper at the last frame but one, with the fetched tokens on the map and in the text."""
    made = MechanismStepper(made_trace(200) if trace is None else trace, "clusterkv", budget=96, queries=8)
    made.frame = len(made.scene.frames) - 2
    return made


@pytest.mark.parametrize("name", NAMES)
def test_a_widget_is_as_narrow_as_its_window_becomes(browser, widget_pages, name):
    with opened(browser, widget_pages[name], width=WIDTHS[0]) as page:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(200)  # a resize is noticed after the next frame
            assert page.evaluate("document.documentElement.scrollWidth") == width
            for menu in page.locator(".kv-menu").all():
                menu.locator("summary").click()
                sheet = menu.locator(".kv-sheet").bounding_box()
                assert 0 <= sheet["x"] <= sheet["x"] + sheet["width"] <= width
                for box in [other.bounding_box() for other in page.locator(".kv-menu > summary").all()]:
                    covered = box["y"] < sheet["y"] + sheet["height"] and sheet["y"] < box["y"] + box["height"]
                    assert not (
                        covered and box["x"] < sheet["x"] + sheet["width"] and sheet["x"] < box["x"] + box["width"]
                    )
                menu.locator("summary").click()
            drawings = page.locator(".kvviz svg[width]")
            widths = drawings.evaluate_all("nodes => nodes.map((node) => node.getBoundingClientRect().width)")
            assert max(widths, default=0) <= width


LABELS = """spans => spans.map(span => {
    const range = document.createRange();
    range.selectNodeContents(span);
    const { left, right } = range.getBoundingClientRect();
    return [span.textContent, left, right];
}).filter(([text]) => text)"""


@pytest.mark.parametrize("width", [390, 800])
def test_both_layers_of_a_map_with_many_heads_have_a_label(browser, tmp_path, width):
    DecodeStepper(recording(heads=12, layers=(22, 23))).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html", width=width) as page:
        (_, _, ends), (first, start, stop), (last, behind, _) = page.locator(".kv-headaxis span").evaluate_all(LABELS)
        assert (first, last) == ("22", "23")
        assert ends <= start < stop < behind


def test_the_label_of_the_last_layer_is_not_cut_on_a_telephone(browser, tmp_path):
    misses = Diagnosis.load(ROOT / "data" / "diagnoses" / "misses-quest.safetensors")
    MissInspector(misses, layer=29, head=0).to_html(tmp_path / "page.html")
    with opened(browser, tmp_path / "page.html", width=390) as page:
        panel = page.locator(".kv-heads .kv-panel").bounding_box()
        text, _, right = page.locator(".kv-headaxis span").evaluate_all(LABELS)[-1]
        assert text == "29"
        assert right <= panel["x"] + panel["width"]
        picked = page.locator(".kv-headcell[data-picked]").bounding_box()
        assert picked["x"] + picked["width"] + 3 <= panel["x"] + panel["width"]  # with its frame
        assert picked["y"] - 3 >= panel["y"]
