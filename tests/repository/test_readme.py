"""README.md and the pages in docs/ agree with the code, the notebooks and the data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

import kvviz

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
EXAMPLE = README.partition("<!-- example -->\n```python\n")[2].partition("```")[0]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md")))
sys.path.insert(0, str(ROOT / "notebooks"))
import reading  # noqa: E402  # found through the line above


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_the_table_of_methods_is_current() -> None:
    assert f"<!-- methods -->\n{kvviz.methods.table()}\n<!-- /methods -->" in (DOCS / "methods.md").read_text()


def test_the_table_of_tasks_is_current() -> None:
    command = [sys.executable, "-c", "import kvviz; print(kvviz.tasks.table())"]  # other tests register more tasks
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"<!-- tasks -->\n{table}<!-- /tasks -->" in (DOCS / "evaluating.md").read_text()


@pytest.mark.parametrize("document", PAGES)
def test_paths_and_targets_in_the_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    folder = ROOT if document == "docs/index.md" else (ROOT / document).parent  # this one is read on the site alone
    made = {"widgets/front.html", "widgets/at_work.html"}  # by docs/pages.py
    assert not [path for path in links if path not in made and not (folder / path).exists()]
    paths = re.findall(r"`((?:kvviz|notebooks|tests|kernels)/[\w./]+)`", text)
    assert not [path for path in paths if not (ROOT / path).exists()]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


def test_every_page_of_docs_is_linked_from_the_readme_and_in_the_navigation() -> None:
    names = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    lists = {"papers", "reference"}  # of pages of the site
    assert names - lists <= set(re.findall(r"\]\(docs/(\w+)\.md\)", README))
    navigation = (DOCS / "index.md").read_text().partition("```{toctree}")[2]
    assert names <= set(navigation.split())


@pytest.mark.parametrize("document", ["README.md", "docs/notebooks.md"])
def test_the_notebooks_have_their_titles(document: str) -> None:
    rows = re.findall(r"\[([^]]+)\]\((?:\.\./)?notebooks/(\w+)\.ipynb\) \|", (ROOT / document).read_text())
    titles = {
        path.stem: json.loads(path.read_text())["cells"][0]["source"][0].removeprefix("# ").strip()
        for path in (ROOT / "notebooks").glob("*.ipynb")
    }
    assert {name: title for title, name in rows} == titles


def test_the_evening_takes_as_long_as_the_notebooks_say() -> None:
    rows = re.findall(r"\(notebooks/(\w+)\.ipynb\) \| (\d+) \|", README)
    assert tuple(name for name, _ in rows) == reading.EVENING
    for name, minutes in rows:
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        assert abs(reading.reading(notebook).minutes - int(minutes)) <= 5, name


def test_claims_are_counted_as_on_the_pages_of_the_papers() -> None:
    counts = {}
    for line in (ROOT / "data" / "papers" / "README.md").read_text().splitlines():
        outcome, *numbers = line.strip("| ").split(" | ")
        if outcome in ("reproduced", "not reproduced"):
            counts[outcome] = [int(number) for number in numbers[:4]]
    reproduced, others = counts["reproduced"], counts["not reproduced"]
    written = re.findall(r"\[Reproduced: (\d+) of (\d+)\]", README)
    assert written == [(str(one), str(one + two)) for one, two in zip(reproduced, others, strict=True)]


def test_decimals_about_the_papers_are_in_the_files_that_are_linked_beside_them() -> None:
    (row,) = [line for line in README.splitlines() if line.startswith('| <img src="data/pictures/clusterkv.png"')]
    for cell in row.strip("| ").split(" | "):
        linked = "".join((ROOT / path).read_text() for path in re.findall(r"\]\(([^)]+\.(?:md|ipynb))\)", cell))
        numbers = re.findall(r"\d+\.\d+|\d+ of (?:the )?\d+", re.sub(r"\[Reproduced: [^]]+\]", "", cell))
        assert [number for number in numbers if not _stands_in(number, linked)] == []


def _stands_in(number: str, text: str) -> bool:
    """Whether a text has a number, or both of "5 of 6", one beside the other in any order ("of 6: pqcache 5")."""
    parts = re.findall(r"[\d.]+", number)
    orders = (parts, parts[::-1])
    return any(re.search(r"\b" + r"\D{1,12}".join(map(re.escape, order)) + r"\b", text) for order in orders)


def test_pictures_are_small_and_one_of_them_moves() -> None:
    moving = ROOT / "data" / "pictures" / "clusterkv_at_work.gif"
    assert moving.stat().st_size <= 400_000
    image = pytest.importorskip("PIL.Image")
    with image.open(moving) as picture:
        assert 640 <= picture.width <= 760
        assert picture.n_frames >= 10


@pytest.mark.slow
@pytest.mark.model
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) == 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(EXAMPLE, names)
    recording = names["out"].recording
    assert 0 < recording.summary()["recall"] < 1
    assert recording.answer in capsys.readouterr().out
    assert names["stepper"].recording is recording
    assert "clusterkv" in (tmp_path / "stepper.html").read_text()
