"""On a dark page, a figure of the light theme looks like the same figure of the dark theme, and has no mode bar."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import plotly.io as pio
import pytest
from plotly.offline import get_plotlyjs

from kvviz import plots
from kvviz.plots.dark_page import style_sheet
from kvviz.plots.theme import DARK, LIGHT
from tests.plots import plot_data
from tests.plots.plot_data import make_trace
from tests.plots.test_plot_theme import contrast

# Painted colours of all parts of a figure. White or dark text on a cell depends on the cell alone.
PAINTED = """() => [...document.querySelectorAll(".js-plotly-plot svg.main-svg *:not(defs *)")]
  .filter((part) => part.closest("text") === null || part.closest(".bars") === null)
  .map((part) => {
    const { fill, stroke } = getComputedStyle(part);
    const name = `${part.tagName} ${(part.getAttribute("class") ?? "").split(" ")[0]} ${part.textContent.slice(0, 20)}`;
    return [name, fill.startsWith("url") ? "pattern" : fill, part.style.stroke ? stroke : ""];
  })"""
SHOW = """([attributes, content]) => {
  const body = document.createElement("body");
  const { firstChild } = document.createRange().createContextualFragment(attributes);
  for (const { name, value } of firstChild.attributes) body.setAttribute(name, value);
  document.body.replaceWith(body);
  body.append(document.createRange().createContextualFragment(content));  // runs its scripts
}"""
GROUND = '() => getComputedStyle(document.querySelector(".main-svg")).backgroundColor'
PAGES = {
    "JupyterLab": ('data-jp-theme-light="false"', "light"), "the site": ('data-theme="dark"', "light"),
    "the system": ('data-theme="auto"', "dark"), "VS Code": ('class="vscode-dark"', "light"),
}  # fmt: skip


def drawings() -> dict[str, Callable[..., go.Figure]]:
    run = plot_data.recording()
    ordered = pd.DataFrame({"rate": [1, 2] * 3, "size": [1, 1, 2, 2, 3, 3], "recall": np.linspace(0.1, 0.9, 6)})
    parts = pd.DataFrame({"method": "quest", "part": ["select", "build", "store", "rest"], "seconds": [1, 2, 3, 4]})
    found = pd.DataFrame(
        {"method": ["quest", "full"], "length": [512, 512], "depth": [0.1, 0.1], "found": [True, False]}
    )
    ledger = {"quest": {"sinks": 4, "recent": 3, "selected": 28, "kept_bytes": {"device": 2048, "host": 999}}}
    return {
        "methods": functools.partial(plots.recall_by_budget, plot_data.table()),
        "marks": functools.partial(plots.selection_map, run, 2),
        "groups": functools.partial(plots.selection_map, run, 2, color="group"),
        "keys": functools.partial(plots.semantic_space, make_trace(run), 2, clusters=np.arange(68) % 4),
        "layers": functools.partial(plots.similarity_by_distance, make_trace(run)),
        "ordered": functools.partial(plots.ablation, ordered, field="size", metric="recall", series=("rate",)),
        "parts": functools.partial(plots.latency, parts),
        "areas": functools.partial(plots.budget_ledger, ledger),
        "cells": functools.partial(plots.needle_grid, found),
    }


@pytest.fixture(scope="module")
def show(browser):
    """Shows a figure as a notebook does, in a new body with these attributes, on a page that all tests share.

    Loading plotly.js takes longer than a test.
    """
    page = browser.new_page(viewport={"width": 700, "height": 600})
    page.set_content(f"<script>{get_plotlyjs()}</script>")

    def shown(figure: go.Figure, body: str = "", scheme: str = "light"):
        page.emulate_media(color_scheme=scheme)
        drawing = pio.to_html(figure, include_plotlyjs=False, full_html=False, config={"displayModeBar": False})
        page.evaluate(SHOW, [f"<p {body}></p>", f"<style>{style_sheet(figure)}</style>{drawing}"])
        page.locator(".main-svg .xtick, .main-svg .point").first.wait_for(state="attached")
        return page

    yield shown
    page.close()


@pytest.mark.browser
@pytest.mark.parametrize("which", list(drawings()))
def test_a_light_figure_on_a_dark_page_has_the_dark_themes_colours(which, show):
    expected = show(drawings()[which](dark=True))
    painted, ground = expected.evaluate(PAINTED), expected.evaluate(GROUND)
    assert len(painted) > 50
    page = show(drawings()[which](dark=False), PAGES["JupyterLab"][0])
    assert page.evaluate(PAINTED) == painted
    assert page.evaluate(GROUND) == ground


@pytest.mark.browser
@pytest.mark.parametrize("where", list(PAGES))
def test_a_figure_follows_the_theme_at_once(where, show):
    body, scheme = PAGES[where]
    figure = drawings()["methods"](dark=False)
    light, dark = ("rgb({}, {}, {})".format(*bytes.fromhex(theme.background[1:])) for theme in (LIGHT, DARK))
    page = show(figure, body, scheme)
    assert page.evaluate(GROUND) == dark
    page.evaluate('document.body.removeAttribute("class"); document.body.dataset.jpThemeLight = "true"')
    page.evaluate('document.body.dataset.theme = "light"')
    assert page.evaluate(GROUND) == light


def test_a_colour_of_ones_own_stays_legible_on_a_dark_page():
    table = pd.DataFrame({"method": "mine", "budget": [8, 16], "recall": [0.5, 0.6]})
    table.attrs["styles"] = {"mine": {"color": "#440022"}}
    rules = style_sheet(plots.recall_by_budget(table))
    color = rules.partition("stroke: rgb(68, 0, 34)")[2].partition("{ stroke: ")[2].partition(" ")[0]
    assert contrast("#440022", DARK.background) < 4.5 <= contrast(color, DARK.background)


def test_a_notebook_shows_a_figure_with_its_style_sheet_and_without_a_mode_bar(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    figure = drawings()["methods"](dark=False)
    with capture_output() as captured:
        figure._ipython_display_()
    style, drawing = (output.data for output in captured.outputs)
    assert style_sheet(figure) in style["text/html"]
    shown = drawing["application/vnd.plotly.v1+json"]
    assert shown["config"]["displayModeBar"] is False
    assert go.Figure(data=shown["data"]).data[0].name == figure.data[0].name
    InteractiveShell.clear_instance()
