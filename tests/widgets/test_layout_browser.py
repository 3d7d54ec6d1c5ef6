"""All widgets as pages, at the widths of a wide window, a notebook's cell and a telephone."""

from __future__ import annotations

import pytest

from kvviz.widgets import BudgetExplorer, ClusterInspector, DecodeStepper, MethodComparer, MissInspector
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.browser.recordings import hostile_recording
from tests.generation.test_explore import made_trace
from tests.synthetic import diagnosis
from tests.widgets.test_browser import opened

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]
OTHERS = ("quest", "pqcache", "ctkvr", "centroidkv", "snapkv", "streaming_llm")  # one of each colour
WIDTHS = (1280, 800, 390)
NAMES = ("stepper", "comparer", "explorer", "inspector", "misses")


def widgets():
    made = hostile_recording()
    return {
        "stepper": DecodeStepper(made),
        "comparer": MethodComparer([made, *(made.replace(method=name) for name in OTHERS)]),
        "explorer": BudgetExplorer(made_trace(200), method="quest", budget=96),
        "inspector": ClusterInspector(made_trace(200)),
        "misses": MissInspector(diagnosis()),
    }


@pytest.fixture(scope="module", params=NAMES)
def path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / f"{request.param}.html"
    widgets()[request.param].to_html(path)
    return path


def test_a_widget_is_as_narrow_as_its_window_becomes(browser, path):
    with opened(browser, path, width=WIDTHS[0]) as page:
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(200)  # a resize is noticed after the next frame
            assert page.evaluate("document.documentElement.scrollWidth") == width
            for menu in page.locator(".kv-menu").all():
                menu.locator("summary").click()
                sheet = menu.locator(".kv-sheet").bounding_box()
                assert 0 <= sheet["x"] <= sheet["x"] + sheet["width"] <= width
                menu.locator("summary").click()
            for svg in page.locator(".kvviz svg[width]").all():
                assert svg.bounding_box()["width"] <= width
