"""axe-core finds no serious problem of accessibility in any widget, light or dark."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON
from tests.widgets.test_browser import opened
from tests.widgets.test_layout_browser import NAMES

pytestmark = [pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", NAMES)
def test_no_widget_has_a_serious_problem(browser, widget_pages, name, scheme):
    with opened(browser, widget_pages[name], scheme=scheme) as page:
        found = []
        for menu in page.locator(".kv-menu > summary").all():
            menu.press("Enter")  # the open menu is checked too
            found.append(Axe().run(page).response)
            menu.press("Escape")
    assert all(len(checked["passes"]) > 10 for checked in found)
    serious = [
        (problem["id"], problem["help"], [node["html"][:200] for node in problem["nodes"][:3]])
        for checked in found
        for problem in checked["violations"]
        if problem["impact"] in ("serious", "critical")
    ]
    assert serious == []
