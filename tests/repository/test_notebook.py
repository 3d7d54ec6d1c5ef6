"""The committed notebooks, and the quickstart in a real JupyterLab, from recorded data.

The site runs all of them from recorded data, and `make demo` the quickstart from the model.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.lab import NO_BROWSER, NO_BROWSER_REASON, lab_page, run_all

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "notebooks"))

from reading import EVENING, EVENING_MINUTES, header, reading  # noqa: E402  # found through the line above

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DECIMAL = re.compile(r"(?<![\d.])\d{1,3}\.\d+(?![\d.])")  # not an arXiv number or a version
ATTENDED = "spans => spans.map(span => Number(span.dataset.position))"


def cells(path, kind):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestCommitted:
    def test_it_is_small_and_holds_no_widget_state(self, path):
        text = path.read_text()
        assert len(text) < 1_000_000
        assert "application/vnd.jupyter.widget-state+json" not in text

    def test_cells_are_short_and_define_nothing(self, path):
        sources = ["".join(cell["source"]) for cell in cells(path, "code")]
        folded = [cell for cell in cells(path, "code") if "colab" in cell["metadata"].get("tags", ())]
        assert len(sources) - len(folded) + len(cells(path, "markdown")) <= 15
        for source in sources:
            assert len(source.splitlines()) <= 15
            kinds = {type(node) for node in ast.walk(ast.parse(source))}
            assert not kinds & {ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef}

    def test_outputs_are_of_one_complete_run(self, path):
        code = cells(path, "code")
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        outputs = [output for cell in code for output in cell["outputs"]]
        assert not [output for output in outputs if output["output_type"] == "error"]
        assert any("image/png" in output.get("data", {}) for output in outputs), (
            "no picture for viewers without scripts"
        )
        assert not [output for output in outputs if output.get("name") == "stderr"], "warnings in the saved outputs"
        pages = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
        assert not [page for page in pages if page.startswith("<style>")], "rules for a figure that is a picture now"

    def test_it_shows_something_soon_and_lets_the_reader_predict(self, path):
        """At most 120 words come before the first picture, the set-up is folded, and so is what a prediction asks."""
        notebook = nbformat.read(path, 4)
        assert reading(notebook).before <= 120
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert any("Prediction(" in cell.source for cell in code)
        hidden = {"set-up": "source_hidden", "answer": "outputs_hidden"}
        for tag, what in hidden.items():
            tagged = [cell for cell in code if tag in cell.metadata.get("tags", ())]
            assert tagged, tag
            assert all(cell.metadata["jupyter"][what] for cell in tagged), tag

    def test_it_says_how_long_it_takes_and_what_comes_before_and_after(self, path):
        names = [other.stem for other in NOTEBOOKS]
        minutes = reading(nbformat.read(path, 4)).minutes
        assert json.loads(path.read_text())["cells"][0]["source"][2] == header(path.stem, names, minutes) + "\n"


def test_the_path_of_an_evening_takes_an_evening():
    timed = {name: reading(nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)) for name in EVENING}
    assert sum(each.minutes for each in timed.values()) <= EVENING_MINUTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_decimals_in_prose_about_the_committed_run_are_in_its_outputs(path):
    """Chosen settings, such as a ratio, are in the source of another cell."""
    all_cells = json.loads(path.read_text())["cells"]
    shown = " ".join(text for cell in all_cells for output in cell.get("outputs", ()) for text in texts(output))
    measured = [float(number) for number in DECIMAL.findall(shown)]
    for cell in all_cells:
        if cell["cell_type"] == "markdown" and "committed run" in "".join(cell["source"]):
            others = " ".join("".join(other["source"]) for other in all_cells if other is not cell)
            for number in set(DECIMAL.findall("".join(cell["source"]))) - set(DECIMAL.findall(others)):
                half = 0.5 * 10 ** -len(number.partition(".")[2])
                assert any(abs(value - float(number)) <= half * (1 + 1e-6) for value in measured), number


def texts(output):
    """The text of an output."""
    return "".join(output.get("text", ())), "".join(output.get("data", {}).get("text/plain", ()))


def test_a_run_keeps_the_snapshots_of_widgets_without_a_page_only(tmp_path):
    """The others get a picture of their page, or the page itself, which show more."""
    sources = [
        "from kvviz.widgets import DecodeStepper; from tests.synthetic import recording; DecodeStepper(recording())",
        "from kvviz.widgets import TokenStrip; TokenStrip(['a', ' b'], label='alone')",
    ]
    cells = [
        nbformat.v4.new_code_cell(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {source}") for source in sources
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    runpy.run_path(str(ROOT / "notebooks" / "run.py"))["execute"](notebook, str(tmp_path))
    view = "application/vnd.jupyter.widget-view+json"
    assert [[sorted(output.data) for output in cell.outputs] for cell in notebook.cells] == [
        [[view, "text/plain"]], [[view, "text/plain"], ["image/svg+xml", "text/html", "text/plain"]],
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(NO_BROWSER, reason=NO_BROWSER_REASON)
def test_the_quickstart_runs_in_jupyterlab(browser, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "private").mkdir()
    notebook = tmp_path / "work" / "quickstart.ipynb"
    shutil.copy(NOTEBOOKS[0], notebook)
    with lab_page(notebook, browser, tmp_path / "private", {"KVVIZ_OFFLINE": "1"}) as page:
        page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
        run_all(page)
        stepper = page.locator(".kv-stepper")
        highlighted = stepper.locator(".kv-attended[data-position]")
        stepper.scroll_into_view_if_needed()
        expect(highlighted.first).to_be_visible()
        before = highlighted.evaluate_all(ATTENDED)
        slider = stepper.get_by_role("slider", name="decode step")
        step = int(slider.input_value())
        slider.press("ArrowRight")
        expect(slider).to_have_value(str(step + 1))
        assert highlighted.evaluate_all(ATTENDED) != before
        if shots := os.environ.get("KVVIZ_SCREENSHOTS"):  # to look at them
            stepper.screenshot(path=Path(shots) / "quickstart_stepper.png")
            page.screenshot(path=Path(shots) / "quickstart.png")
