"""Files for print: vectors with embedded fonts at a paper's width, written atomically."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import plotly.graph_objects as go
import pypdf
import pytest

from kvviz import plots
from kvviz.errors import InvalidInputError, KVVizError, MissingDependencyError
from kvviz.plots.export import browser_page
from tests.plots import plot_data
from tests.plots.plot_data import make_trace


@pytest.fixture(scope="module")
def recording():
    return plot_data.recording()


@pytest.fixture
def table():
    return plot_data.table()


def descend(item, objects):
    """Collect all objects of a PDF page that its resources refer to."""
    item = item.get_object()
    if id(item) in objects:
        return
    objects[id(item)] = item
    children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    parent = item.get("/Parent") if isinstance(item, dict) else None
    for child in children:
        if child is not parent:
            descend(child, objects)


def figures_for_print(recording, table):
    return {
        "agreement": plots.selection_map([recording, recording.replace(method="quest")], 2),
        "group": plots.selection_map(recording, 2, color="group", dark=True),
        "recall": plots.recall_by_budget(table),
        "keys": plots.semantic_space(make_trace(recording), 2, clusters=np.arange(68) % 4, query=np.ones(64)),
    }


@pytest.fixture(scope="module", autouse=True)
def kaleido_server():
    """One Chromium for all files of this module."""
    import kaleido

    kaleido.start_sync_server(silence_warnings=True, **browser_page())
    yield
    kaleido.stop_sync_server(silence_warnings=True)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["agreement", "group", "recall", "keys"])
def test_a_pdf_has_the_papers_width_embedded_fonts_and_no_pictures(recording, table, tmp_path, which):
    figure = figures_for_print(recording, table)[which]
    before = json.loads(figure.to_json())
    for width, inches in (("column", 3.3), ("page", 7.0), (5.0, 5.0)):
        path = plots.save(figure, tmp_path / "figure.pdf", width=width)
        assert path == tmp_path / "figure.pdf"
        (page,) = pypdf.PdfReader(path).pages
        assert float(page.mediabox.width) == pytest.approx(72 * inches, abs=1.5)
        objects = {}
        descend(page["/Resources"], objects)
        dictionaries = [item for item in objects.values() if isinstance(item, dict)]
        assert not [item for item in dictionaries if item.get("/Subtype") == "/Image"]
        fonts = [item for item in dictionaries if item.get("/Type") == "/FontDescriptor"]
        assert fonts
        assert all({"/FontFile", "/FontFile2", "/FontFile3"} & set(font) for font in fonts)
        words = page.extract_text()
        assert "tokens" in words
    assert json.loads(figure.to_json()) == before


@pytest.mark.parametrize("size", [34, 50])  # 50 blocks of 68 tokens have one or two tokens each
def test_a_heat_map_is_a_lossless_picture_with_one_pixel_per_cell(recording, tmp_path, size):
    figure = plots.key_similarity(make_trace(recording), layers=[2], size=size)
    (page,) = pypdf.PdfReader(plots.save(figure, tmp_path / "map.pdf")).pages
    objects = {}
    descend(page["/Resources"], objects)
    images = [item for item in objects.values() if isinstance(item, dict) and item.get("/Subtype") == "/Image"]
    assert len(images) == len(figure.data)
    for image, heat in zip(images, figure.data, strict=True):
        assert (image["/Width"], image["/Height"]) == (size, size) == np.shape(heat.z)
        assert (image["/Filter"], image.get("/Interpolate", False)) == ("/FlateDecode", False)
        pixels = np.frombuffer(image.get_data(), np.uint8).reshape(size, size, -1)[..., :3].astype(int)
        brightness = pixels @ [2, 7, 1]  # cividis gets lighter with the cosine
        order = np.argsort(np.asarray(heat.z).ravel(), kind="stable")
        # Rows go down from the first position; values agree up to the rounding of colours.
        assert (np.diff(brightness.ravel()[order]) >= -20).all()


def test_an_svg_is_xml_of_the_right_size_with_text_as_text(recording, tmp_path):
    recording = recording.replace(model="<b>&$x$")
    path = plots.save(plots.selection_map(recording, 2), tmp_path / "figure.SVG", width="page", height=3)
    root = ET.parse(path).getroot()
    assert (float(root.get("width")), float(root.get("height"))) == pytest.approx((672, 288), abs=1)
    tags = [item.tag.rpartition("}")[2] for item in root.iter()]
    assert "image" not in tags
    assert "<b>&$x$" in "".join(root.itertext())  # the characters, not a tag or a formula


def test_a_png_has_300_dots_per_inch(tmp_path):
    raw = plots.save(go.Figure(), tmp_path / "figure.png", height=2).read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(raw[place : place + 4]) for place in (16, 20)]
    assert size == pytest.approx([990, 600], abs=4)


def test_printed_text_has_eight_points_and_titles_are_wrapped(table, tmp_path):
    table.attrs = {"model": "a-model-with-quite-a-long-name", "prompt_length": 123456, "seed": 1234}
    path = plots.save(plots.recall_by_budget(table), tmp_path / "figure.svg")
    texts = [item for item in ET.parse(path).getroot().iter() if item.tag.endswith("}text")]
    sizes = {re.search(r"font-size: ([\d.]+)px", item.get("style")).group(1) for item in texts if item.get("style")}
    assert {round(float(size) * 72 / 96, 2) for size in sizes} == {8.0}
    title = next(item for item in texts if "gtitle" in item.get("class", ""))
    lines = [part for part in title.iter() if part.tag.endswith("}tspan")]
    assert len(lines) >= 2
    assert all(len(line.text) <= 60 for line in lines)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "figure.pdf"
    path.write_bytes(b"old")
    with pytest.raises(InvalidInputError, match=r"got '\.gif'; wanted one of \.pdf, \.svg, \.png"):
        plots.save(go.Figure(), tmp_path / "figure.gif")
    for width in ("collumn", 0, -1, 1000, float("nan")):
        with pytest.raises(InvalidInputError, match=r"plots\.save: width"):
            plots.save(go.Figure(), path, width=width)
    with pytest.raises(InvalidInputError, match=r"plots\.save: height"):
        plots.save(go.Figure(), path, height=0)
    with pytest.raises(FileNotFoundError, match="no folder"):
        plots.save(go.Figure(), tmp_path / "missing" / "figure.svg")
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "kvviz\[export\]"'):
        plots.save(go.Figure(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_machine_without_a_browser_gets_a_clear_error(tmp_path, monkeypatch):
    import kaleido

    kaleido.stop_sync_server(silence_warnings=True)
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "no-browser"))
    try:
        with pytest.raises(KVVizError, match="no browser that kaleido can drive; wanted Chromium or Chrome"):
            plots.save(go.Figure(), tmp_path / "figure.pdf")
    finally:
        monkeypatch.undo()
        kaleido.start_sync_server(silence_warnings=True, **browser_page())
    assert list(tmp_path.iterdir()) == []
