"""A notebook with widgets that is saved, and opened again without their kernel: in JupyterLab and by nbconvert."""

from __future__ import annotations

import base64
import json
from xml.etree import ElementTree

import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, READY, ROOT, START_S, jupyterlab, run_all, write_notebook

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)]

STEPPER = """from kvviz.widgets import DecodeStepper
from tests.synthetic import recording
DecodeStepper(recording(), step=3)"""
MATRIX = """import numpy as np
from kvviz.widgets import CanvasMatrix
display(CanvasMatrix(np.arange(200, dtype=np.uint8).reshape(10, 20)))"""
BOX = """from ipywidgets import HBox, VBox
HBox([VBox([DecodeStepper(recording(), step=2)]), CanvasMatrix(np.eye(9, dtype=np.uint8))])"""
OUTPUT = """from ipywidgets import Output
filled_before, filled_after, filled_later = Output(), Output(), Output()
with filled_before: display(DecodeStepper(recording(), step=1))
display(filled_before)
display(filled_after)
with filled_after: display(DecodeStepper(recording(), step=2))
display(filled_later)"""
LATER = "with filled_later: display(DecodeStepper(recording(), step=4))"
SAVE = "() => window.jupyterapp.commands.execute('docmanager:save')"
FORGET = "() => window.jupyterapp.serviceManager.sessions.shutdownAll()"
ERROR = "Error displaying widget"


@pytest.fixture
def lab(browser, tmp_path):
    """The page and file of a notebook with a stepper and a matrix, and what opens a file of its folder."""
    for name in ("work", "private"):
        (tmp_path / name).mkdir()
    notebook = write_notebook(tmp_path / "work" / "saved.ipynb", STEPPER, MATRIX, BOX, OUTPUT, LATER)
    with jupyterlab(notebook.parent, tmp_path / "private", {"PYTHONPATH": str(ROOT)}) as address:
        context = browser.new_context(viewport={"width": 1200, "height": 1400})
        page = context.new_page()
        page.set_default_timeout(START_S * 1000)

        def show(name):
            page.goto(address.format(name=name))
            page.wait_for_function(READY)

        show(notebook.name)
        yield page, notebook, show
        context.close()


def test_a_reopened_notebook_shows_the_snapshots(lab):
    page, notebook, show = lab
    run_all(page)
    expect(page.locator(".kv-stepper .kv-attended[data-position]").first).to_be_visible()
    expect(page.locator(".kv-stepper")).to_have_count(5)  # those in Outputs come last
    snapshots = page.locator("img[src^='data:image/svg+xml']")
    expect(snapshots).to_have_count(10)  # each Output has one too, which is lost when the notebook is closed
    assert [picture.is_visible() for picture in snapshots.all()] == [False] * 10  # the widgets are there

    page.evaluate(SAVE)
    page.evaluate(FORGET)
    show(notebook.name)
    check_pictures(page)
    errors = page.locator(".jp-OutputArea-output", has_text=ERROR)
    expect(errors).to_have_count(6)  # JupyterLab draws them all the same; the last Output's picture is in the next cell
    assert [error.is_visible() for error in errors.all()] == [False] * 5 + [True]

    page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-cell')")
    expect(page.locator(".kv-stepper .kv-attended[data-position]").first).to_be_visible()
    expect(snapshots.nth(0)).to_be_hidden()
    expect(snapshots.nth(1)).to_be_visible()  # the other cells have not run

    document = json.loads(notebook.read_text())
    document["metadata"]["from"] = "elsewhere"
    document["cells"][0]["source"] = "# changed by another person"  # so that JupyterLab does not trust it
    (notebook.parent / "received.ipynb").write_text(json.dumps(document))
    show("received.ipynb")
    check_pictures(page)
    assert page.get_by_text(ERROR).count() == 0

    text, _ = HTMLExporter().from_filename(str(notebook))
    assert text.count('class="kvviz-snapshot"') == 7
    assert "widget-view+json" not in text


def check_pictures(page):
    """All pictures are visible, have loaded, and show the step that the stepper showed."""
    pictures = page.locator("img[src^='data:image/svg+xml']")
    expect(pictures).to_have_count(7)
    for picture in pictures.all():
        expect(picture).to_be_visible()
        assert picture.evaluate("node => node.decode().then(() => node.naturalWidth)") == 760
    words = pictures.first.get_attribute("alt")
    assert "layer 2 · KV head 0 · step 3 of 5" in words
    in_outputs = [picture.get_attribute("alt") for picture in pictures.all()[4:]]
    assert [f"step {step} of 5" in words for step, words in zip((1, 2, 4), in_outputs, strict=True)] == [True] * 3
    drawing = ElementTree.fromstring(base64.b64decode(pictures.first.get_attribute("src").partition(",")[2]))
    assert "layer 2 · KV head 0 · step 3 of 5" in [node.text for node in drawing.iter()]
