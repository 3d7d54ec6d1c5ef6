"""In a real JupyterLab, a figure follows the theme, and nothing covers its title."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from kvviz.plots.theme import DARK, LIGHT
from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, empty_lab, run_cell, set_theme

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

FIGURE = """
from kvviz import plots
from tests.plots import plot_data
plots.recall_by_budget(plot_data.table())
"""


def painted(color: str) -> str:
    return "rgb({}, {}, {})".format(*bytes.fromhex(color[1:]))


def test_a_figure_follows_jupyterlabs_theme_and_has_no_mode_bar(browser, tmp_path):
    with empty_lab(browser, tmp_path) as page:
        run_cell(page, FIGURE)
        ground, title = page.locator(".js-plotly-plot .main-svg").first, page.locator(".js-plotly-plot .gtitle")
        for theme, ink in (("JupyterLab Light", LIGHT), ("JupyterLab Dark", DARK), ("JupyterLab Light", LIGHT)):
            set_theme(page, theme)
            expect(ground).to_have_css("background-color", painted(ink.background))
            expect(title).to_have_css("fill", painted(ink.foreground))
        page.locator(".js-plotly-plot").hover()
        expect(page.locator(".js-plotly-plot .modebar-btn")).to_have_count(0)
