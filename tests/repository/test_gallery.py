"""The gallery shows every plot, drawn from recorded data, and its page and pictures agree."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import struct
import sys
from pathlib import Path

import plotly.graph_objects as go
import pytest

import kvviz
from kvviz import plots
from kvviz.plots.theme import ink
from tests.plots import drawn
from tests.plots.seen import hexadecimal, text_and_lines
from tests.plots.test_plot_theme import contrast

GALLERY = Path(__file__).parents[2] / "data" / "gallery"


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def gallery():
    """data/gallery/make.py as a module; it imports its families like a script."""
    sys.path.insert(0, str(GALLERY))
    try:
        spec = importlib.util.spec_from_file_location("gallery_make", GALLERY / "make.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(GALLERY))
    return script


@pytest.fixture(scope="module")
def figures(gallery):
    """All figures except t-SNE's, which take seconds and use the same function as PCA's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvviz.models, "load", None)
        runs = kvviz.open_runs(live=False)
        return {entry.name: entry.draw(runs) for entry in gallery.ENTRIES.values() if "tsne" not in entry.call}


def test_every_plot_is_in_the_gallery(gallery):
    drawing = {
        name for name in plots.__all__ if inspect.signature(getattr(plots, name)).return_annotation == "go.Figure"
    }
    assert len(drawing) >= 22
    assert {entry.plot for entry in gallery.ENTRIES.values()} == drawing
    families = {family.__name__ for family in gallery.FAMILIES}
    assert {entry.draw.__module__ for entry in gallery.ENTRIES.values()} == families, "the page leaves out a family"


def test_every_plot_takes_a_title_and_the_dark_theme():
    for name in plots.__all__:
        parameters = inspect.signature(getattr(plots, name)).parameters
        if inspect.signature(getattr(plots, name)).return_annotation == "go.Figure":
            assert parameters["title"].annotation == "str | None", name
            assert parameters["dark"].annotation == "bool", name


def test_the_page_is_current_and_shows_every_picture(gallery):
    page = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert page == gallery.page(), "run: make gallery"
    on_disk = {path.stem: path.read_bytes() for path in GALLERY.glob("*.png")}
    assert set(on_disk) == set(gallery.ENTRIES)
    assert all(f'src="{name}.png"' in page for name in on_disk)
    assert not gallery.too_large(GALLERY)
    for name, content in on_disk.items():
        inches = {"column": 3.3, "page": 7.0}[gallery.ENTRIES[name].width]
        assert content.startswith(b"\x89PNG")
        assert struct.unpack(">I", content[16:20])[0] == pytest.approx(inches * gallery.DPI, abs=2)


def test_the_page_for_papers_holds_what_is_measured_again(gallery):
    page = (GALLERY / "print.md").read_text(encoding="utf-8")
    assert page == gallery.print_page.page(kvviz.open_runs(live=False)), "run: make gallery"
    calls = [line.split(" | ") for line in page.splitlines() if line.startswith("| `plots.save")]
    assert len(calls) >= 5
    for call in calls:
        assert call[2:4] == ["8 pt", "yes"], call
        assert call[4].startswith("ClusterKV" if 'names="paper"' in call[0] else "clusterkv")
    columns = [float(line.rpartition(" | ")[2].rstrip("% |")) for line in page.splitlines() if line.endswith("% |")]
    assert len(columns) >= 6
    assert all(abs(share - 100) <= 0.5 for share in columns)


def test_every_figure_is_drawn_without_a_model(figures):
    for name, figure in figures.items():
        assert isinstance(figure, go.Figure), name
        assert figure.layout.title.text, name
        assert figure.data, name


def test_the_call_on_the_page_draws_the_figure(gallery, figures):
    call = gallery.ENTRIES["query_overlap"].call
    assert call == "plots.query_overlap(runs.trace('prose'), 14, k=64)"
    again = eval(call, {"plots": plots, "runs": kvviz.open_runs(live=False)})
    assert again.to_json() == figures["query_overlap"].to_json()


def test_no_figure_is_cut_at_a_papers_width(figures, tmp_path, playwright):
    cut = {}
    with drawn.dejavu_only(tmp_path, playwright) as browser:
        for name, figure in figures.items():
            path = plots.save(figure, tmp_path / f"{name}.svg", width="column")
            cut[name] = drawn.ink_outside(path, browser)
    assert {name: sides for name, sides in cut.items() if sides} == {}


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_have_a_contrast_of_4_5(gallery, dark, monkeypatch):
    for name in {entry.plot for entry in gallery.ENTRIES.values()}:
        monkeypatch.setattr(plots, name, functools.partial(getattr(plots, name), dark=dark))
    page = ink(dark).background
    runs, seen, faint = kvviz.open_runs(live=False), 0, set()
    for entry in gallery.ENTRIES.values():
        if "tsne" not in entry.call:
            for what, color in text_and_lines(entry.draw(runs)):
                color = hexadecimal(color)
                seen += bool(color)
                if color and contrast(color, page) < 4.5 and color != ink(dark).grid:
                    faint.add((entry.name, what, color, round(contrast(color, page), 2)))
    assert seen > 300
    assert not faint


def test_a_picture_that_is_too_large_is_named(gallery, tmp_path):
    (tmp_path / "small.png").write_bytes(bytes(gallery.MOST_BYTES))
    assert gallery.too_large(tmp_path) == ""
    (tmp_path / "large.png").write_bytes(bytes(gallery.MOST_BYTES + 1))
    assert gallery.too_large(tmp_path).startswith("large.png has")


def test_dots_per_inch_out_of_range_are_refused(tmp_path):
    for dpi in (0, 49, 5000, float("nan")):
        with pytest.raises(kvviz.InvalidInputError, match=r"plots\.save: dpi.*50 to 1,200"):
            plots.save(go.Figure(), tmp_path / "figure.png", dpi=dpi)
