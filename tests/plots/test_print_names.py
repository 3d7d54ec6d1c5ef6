"""Figures for a paper: methods by their papers' names, no title, another font; as SVG and as PDF."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pandas as pd
import pypdf
import pytest

import kvviz
from kvviz import plots
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.plots.print_layout import for_print
from kvviz.plots.print_names import named_for_print
from kvviz.trace.earlier import TITLES
from tests.plots import drawn, plot_data
from tests.plots.test_plot_theme import texts_of


@pytest.fixture(scope="module")
def browser(tmp_path_factory, playwright):
    with drawn.dejavu_only(tmp_path_factory.mktemp("dejavu"), playwright) as browser:
        yield browser


def figure_of(which):
    run = plot_data.recording()
    rows = [{"method": name, "budget": b, "recall": 0.5} for name in ("clusterkv", "full", "mine") for b in (8, 16)]
    scores = [
        {"task": task, "method": name, "budget": b, "score": 0.5}
        for task in ("single needle", "several needles", "words", "variables")
        for name in ("clusterkv", "streaming_llm") for b in (8, 16)
    ]  # fmt: skip
    ledger = {"selected": 28, "kept_bytes": {"device": 9}}
    needles = [
        {"method": name, "length": length, "depth": depth / 5, "found": True}
        for name in ("full", "clusterkv", "streaming_llm") for length in (500, 1000) for depth in range(6)
    ]  # fmt: skip
    drawings = {
        "curves": lambda: plots.recall_by_budget(pd.DataFrame(rows)),
        "panels": lambda: plots.selection_map([run.replace(method="own", title="Our Own Method"), run], 2),
        "tasks": lambda: plots.score_by_budget(pd.DataFrame(scores)),
        "maps": lambda: plots.needle_grid(pd.DataFrame(needles)),
        "bars": lambda: plots.budget_ledger({"quest": ledger, "streaming_llm": ledger}),
    }
    return drawings[which]()


def shown(figure) -> str:
    """All texts of a figure."""
    labels = [label for axis in figure.select_yaxes() for label in axis.ticktext or ()]
    labels += [label for trace in figure.data if trace.type == "bar" for label in map(str, trace.y)]
    return "\n".join([*texts_of(figure), *labels])


@pytest.mark.parametrize("which", ["curves", "panels", "tasks", "maps", "bars"])
def test_methods_have_their_names_in_print(which):
    figure = figure_of(which)
    before = json.loads(figure.to_json())
    page = for_print(figure, 3.3, names="paper")
    texts = shown(page)
    for name in ("clusterkv", "quest", "streaming_llm", "own"):
        assert not re.search(rf"\b{name}\b", texts), name
    expected = {
        "curves": ["ClusterKV", "Full attention", "mine"], "panels": ["Our Own Method", "ClusterKV"],
        "tasks": ["ClusterKV", "StreamingLLM"], "maps": ["Full attention", "ClusterKV", "StreamingLLM"],
        "bars": ["Quest", "StreamingLLM"],
    }  # fmt: skip
    assert all(name in texts.replace("<br>", " ") for name in expected[which])
    assert json.loads(figure.to_json()) == before
    assert "clusterkv" in shown(for_print(figure, 3.3)) or which == "bars"


def test_a_name_is_replaced_only_where_it_names_a_method():
    figure = plots.recall_by_budget(pd.DataFrame({"method": ["full"], "budget": [8], "recall": [0.5]}))
    for text, printed in {
        "full": "Full attention", "quest · budget 8": "Quest · budget 8", "Time · quest": "Time · Quest",
        "Budget<br>quest ·<br>seed 0": "Budget<br>Quest ·<br>seed 0", "quest, ctkvr: slope 1": "Quest, CTkvr: slope 1",
        "1.6× full, batch 2": "1.6× full, batch 2", "full attention": "full attention", "questions": "questions",
        "missed: only the oracle": "missed: only the oracle", "quest (+0.2 against full)": "Quest (+0.2 against full)",
    }.items():  # fmt: skip
        figure.layout.title.text = text
        named_for_print(figure, "paper")
        assert figure.layout.title.text == printed


def test_own_names_go_before_and_are_escaped():
    page = for_print(figure_of("curves"), 3.3, names={"mine": "Mine <2>", "clusterkv": "Clusters"})
    assert [trace.name for trace in page.data] == ["Clusters", "Full attention", "Mine &lt;2&gt;"]


def test_the_titles_are_those_of_the_classes_also_where_no_class_is_loaded():
    declared = {name: kvviz.methods.get(name).title for name in kvviz.methods.names()}
    assert {name: declared[name] for name in TITLES} == TITLES
    program = "import sys; from kvviz.trace.styles import known_titles; print(known_titles()['quest']); "
    program += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Quest"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [({"names": "papers"}, UnknownNameError, "names"), ({"names": {"quest": 3}}, InvalidInputError, "texts by texts"),
     ({"font": " "}, InvalidInputError, 'font: got \' \'; wanted None, "serif"')],
)  # fmt: skip
def test_other_choices_are_refused(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        plots.save(figure_of("curves"), tmp_path / "figure.pdf", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_figure_without_its_title_is_lower_by_its_lines():
    figure = plots.recall_by_budget(pd.DataFrame({"method": ["quest"], "budget": [8], "recall": [0.5]}), title="a · b")
    with_title, without = (for_print(figure, 3.3, title=title) for title in (True, False))
    assert without.layout.title.text == ""
    assert with_title.layout.height - without.layout.height == pytest.approx(1.35 * 8 * 96 / 72)
    assert with_title.layout.margin.t - without.layout.margin.t == pytest.approx(1.35 * 8 * 96 / 72)


@pytest.mark.browser
@pytest.mark.parametrize("which", ["curves", "panels", "tasks", "maps", "bars"])
@pytest.mark.parametrize("font", [None, "serif", "DejaVu Serif"])
def test_nothing_is_cut_in_a_column(which, font, browser, tmp_path):
    choices = {"title": False, "names": "paper", "font": font}
    path = plots.save(figure_of(which), tmp_path / "figure.svg", width="column", **choices)
    assert drawn.ink_outside(path, browser) == []


@pytest.mark.browser
@pytest.mark.parametrize(("font", "embedded"), [(None, "DejaVuSans"), ("serif", "DejaVuSerif")])
def test_svg_and_pdf_have_the_same_texts_and_the_font(font, embedded, browser, tmp_path):
    figure = figure_of("curves")
    choices = {"title": False, "names": "paper", "font": font}
    svg = ET.parse(plots.save(figure, tmp_path / "figure.svg", **choices)).getroot()
    words = " ".join("".join(item.itertext()) for item in svg.iter() if item.tag.endswith("}text"))
    (page,) = pypdf.PdfReader(plots.save(figure, tmp_path / "figure.pdf", **choices)).pages
    fonts = {str(item.get_object()["/BaseFont"]) for item in page["/Resources"]["/Font"].values()}
    assert all(name.endswith(embedded) for name in fonts), fonts
    sizes = set()

    def note(text, matrix, text_matrix, _, size):
        points = round(abs(matrix[3] * text_matrix[3]) * size, 1)
        if text.strip() and points:  # pypdf also tells of texts before it has read their size
            sizes.add(points)

    printed = page.extract_text(visitor_text=note)
    assert sizes == {8.0}
    for name in ("ClusterKV", "Full attention", "mine"):
        assert name in words
        assert name in printed
    assert "Recall by budget" not in words + printed
