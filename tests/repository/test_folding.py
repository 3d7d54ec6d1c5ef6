"""Pages fold the set-up of a notebook, and the outputs that give a prediction's answer away."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
from sphinx.cmd.build import build_main

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "notebooks")]
import run  # noqa: E402  # found through the line above

import build  # noqa: E402  # likewise


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    cells = [
        nbformat.v4.new_markdown_cell("# A question?"),
        nbformat.v4.new_code_cell("import this_is_set_up", metadata={"tags": ["set-up"]}),
        nbformat.v4.new_code_cell("print('open')"),
        nbformat.v4.new_code_cell("print('measured')", metadata={"tags": ["answer"]}),
    ]
    for cell, text in zip(cells[2:], ("open", "measured"), strict=True):
        cell.outputs = [nbformat.v4.new_output("stream", text=f"the output: {text}")]
    about = {"language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=about)


def inside_details(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", part) for part in re.findall(r"<details.*?</details>", page, re.DOTALL))


def test_the_site_folds_the_set_up_and_the_answer(
    notebook: nbformat.NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in notebook.cells:
        build.fold(cell)
    (tmp_path / "source").mkdir()
    (tmp_path / "extra").mkdir()
    monkeypatch.setenv("KVVIZ_SITE_EXTRA", str(tmp_path / "extra"))
    nbformat.write(notebook, tmp_path / "source" / "index.ipynb")
    out = tmp_path / "html"
    assert build_main(["-Wq", "-b=html", f"-c={ROOT / 'docs'}", str(tmp_path / "source"), str(out)]) == 0
    folded = inside_details((out / "index.html").read_text())
    assert "Show the set-up" in folded
    assert "this_is_set_up" in folded
    assert "Show the measurement" in folded
    assert "the output: measured" in folded
    assert "the output: open" not in folded


def test_a_page_of_run_folds_the_answer(notebook: nbformat.NotebookNode, tmp_path: Path) -> None:
    folded = inside_details(run.page(notebook, "name", tmp_path))
    assert "Show the measurement" in folded
    assert "the output: measured" in folded
    assert "the output: open" not in folded
