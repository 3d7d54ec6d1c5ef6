"""Texts of a printed figure are inside the figure, however long they are."""

from __future__ import annotations

import re

import pandas as pd
import plotly.graph_objects as go
import pytest

from kvviz import plots
from kvviz.plots.print_layout import for_print
from tests.plots import drawn, plot_data


@pytest.fixture(scope="module")
def browser(tmp_path_factory, playwright):
    with drawn.dejavu_only(tmp_path_factory.mktemp("dejavu"), playwright) as browser:
        yield browser


def wordy(methods: int = 9) -> pd.DataFrame:
    """A table whose methods, model and metric have long names."""
    names = [f"a_method_of_ours_with_quite_a_long_name_{number}" for number in range(methods)]
    rows = [{"method": name, "budget": budget, "output_error": 0.1} for name in names for budget in (64, 128)]
    table = pd.DataFrame(rows)
    table.attrs = {"model": "an/unbroken-path-of-a-model-" + "x" * 60, "prompt_length": 123_456, "seed": 1234}
    return table


def figure_of(which: str) -> go.Figure:
    run = plot_data.recording()
    named = run.replace(method="a_method_of_ours_with_a_long_name", budget=123_456)
    ledger = {"sinks": 4, "recent": 8, "selected": 28, "merged": 2, "generated": 3, "kept_bytes": {"device": 9, "a": 8}}
    drawings = {
        "curves": lambda: plots.recall_by_budget(wordy(), metric="output_error"),
        "panels": lambda: plots.selection_map([named, named.replace(method="quest")], 2),
        "bars": lambda: plots.budget_ledger({"a_method_of_ours_with_a_long_name": ledger, "quest": ledger}),
        "axes": lambda: go.Figure(go.Scatter(y=[1, 2])).update_layout(
            height=300, xaxis_title_text="an axis title of many words " * 3, yaxis_title_text="another one " * 9
        ),
    }
    return drawings[which]()


@pytest.mark.browser
@pytest.mark.parametrize("which", ["curves", "panels", "bars", "axes"])
@pytest.mark.parametrize("width", ["column", "page"])
def test_long_texts_are_not_cut(which, width, browser, tmp_path):
    path = plots.save(figure_of(which), tmp_path / "figure.svg", width=width)
    assert not drawn.ink_outside(path, browser)


@pytest.mark.browser
def test_what_is_outside_is_seen(browser, tmp_path):
    figure = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], name="w" * 99, showlegend=True))
    paths = {"outside": tmp_path / "outside.svg", "inside": tmp_path / "inside.svg"}
    figure.write_image(paths["outside"], width=300, height=200)
    figure.update_traces(name="w").write_image(paths["inside"], width=300, height=200)
    assert drawn.ink_outside(paths["outside"], browser) == ["right"]
    assert drawn.ink_outside(paths["inside"], browser) == []


def test_a_long_legend_makes_the_figure_higher_and_a_given_height_is_kept():
    low, high = (for_print(plots.recall_by_budget(wordy(n), metric="output_error"), 3.3, None) for n in (2, 9))
    assert high.layout.height - low.layout.height > 6 * 8 * 96 / 72
    assert for_print(plots.recall_by_budget(wordy(), metric="output_error"), 3.3, 3).layout.height == 3 * 96


def test_a_note_on_the_whole_plot_is_no_panel_title():
    figure = go.Figure(go.Scatter(y=[1, 2]))
    figure.add_annotation(text="a note", xref="paper", yref="paper", x=0, y=1, yanchor="bottom", showarrow=False)
    assert for_print(figure, 3.3).layout.annotations[0].text == "a note"


def test_a_table_has_no_legend():
    table = go.Figure(go.Table(header={"values": ["method"]}, cells={"values": [["quest"]]}))
    assert for_print(table, 3.3, names="paper").layout.width == pytest.approx(3.3 * 96)


def test_panels_move_apart_for_titles_of_several_lines():
    run = plot_data.recording()
    figure = plots.selection_map([run, run.replace(method="a_method_with_a_long_name"), run], 2)
    wide, narrow = for_print(figure, 9, None), for_print(figure, 3.3, None)
    lines = [note.text.count("<br>") for note in narrow.layout.annotations if re.search("recall", note.text)]
    assert lines[1] == 1

    def panel_and_gap(page):
        upper, lower = page.layout.yaxis.domain, page.layout.yaxis2.domain
        return upper[1] - upper[0], upper[0] - lower[1]

    # The panel's pixels stay, and the gap gains a line: that tells how many pixels the whole plot has.
    (panel, gap), (narrow_panel, narrow_gap) = panel_and_gap(wide), panel_and_gap(narrow)
    plot = 1.35 * 8 * 96 / 72 / (narrow_gap * panel / narrow_panel - gap)
    assert 0.4 * narrow.layout.height < plot < 0.8 * narrow.layout.height
    assert wide.layout.yaxis.domain[1] == narrow.layout.yaxis.domain[1] == 1
