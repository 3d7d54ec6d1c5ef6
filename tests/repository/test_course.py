"""The course and the primer agree with the notebooks, their pictures and the data."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import plotly.graph_objects as go
import pytest

import kvviz

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "notebooks"), str(ROOT / "data" / "pictures")]

import primer as attention_pictures  # noqa: E402  # found through the line above
import primer_methods  # noqa: E402  # likewise
import reading  # noqa: E402  # likewise

COURSE = (ROOT / "docs" / "course.md").read_text()
PRIMER = (ROOT / "docs" / "primer.md").read_text()
PICTURE = re.compile(r"!\[([^\]]+)\]\(\.\./data/pictures/primer_(\w+)\.png\)")
SECTIONS = [part.partition("\n") for part in PRIMER.partition("\n---\n")[0].split("\n## ")[1:]]
FIGURES = {draw.__name__: draw for draw in (*attention_pictures.FIGURES, *primer_methods.FIGURES)}
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def test_a_section_is_a_picture_and_at_most_60_words() -> None:
    names = []
    for title, _, body in SECTIONS:
        (picture,) = PICTURE.finditer(body)
        names.append(picture[2])
        assert picture[2] == title.lower().replace(" ", "_")
        assert body.strip().startswith("!["), f"{title}: the picture comes first"
        assert len(PICTURE.sub("", body).split()) <= 60, title
        assert (ROOT / "data" / "pictures" / f"primer_{picture[2]}.png").stat().st_size <= 100_000
    assert names == list(FIGURES)


@pytest.fixture(scope="module")
def traces() -> tuple[kvviz.Trace, kvviz.Trace]:
    runs = kvviz.open_runs(live=False)
    return runs.trace("prose"), runs.trace("layers")


def shown_in(figure: go.Figure) -> str:
    """The texts of a figure: its title, names, ticks and what is written beside marks."""
    data = [[trace.name, getattr(trace, "text", None), getattr(trace, "y", None)] for trace in figure.data]
    texts = [figure.layout.title.text, *(note.text for note in figure.layout.annotations)]
    axes = [value for key, value in figure.to_dict()["layout"].items() if "axis" in key]
    ticks = [axis.get("ticktext", ()) for axis in axes] + [axis.get("title", {}).get("text") for axis in axes]
    names = [name for name, _, _ in data] + [list(text) for _, text, _ in data if isinstance(text, (list, tuple))]
    categories = [list(y) for _, _, y in data if y is not None and len(y) and isinstance(y[0], str)]
    return " ".join(map(str, [*texts, *ticks, *names, *categories]))


@pytest.mark.parametrize(("title", "body"), [(title, body) for title, _, body in SECTIONS], ids=list(FIGURES))
def test_numbers_in_captions_are_those_of_the_pictures(
    title: str, body: str, traces: tuple[kvviz.Trace, kvviz.Trace]
) -> None:
    prose, layers = traces
    name = title.lower().replace(" ", "_")
    draw: Callable[[kvviz.Trace], go.Figure] = FIGURES[name]
    figure = draw(layers if name == "sinks" else prose)
    assert figure.layout.title.text.count(prose.model) == 1, "the title says which model"
    shape = prose.geometry
    facts = {
        "kv_cache": (shape.n_layers, shape.n_kv_heads, 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim),
        "rope": (1,),
        "page": (primer_methods.PAGE, primer_methods.PAGES),
        "codebook": (2**6, 2 * 6, 16 * shape.head_dim),
        "prefill_and_decode": (8,),
    }.get(name, ())
    known = {*NUMBER.findall(shown_in(figure)), *(f"{fact:,}" for fact in facts)}
    assert set(NUMBER.findall(PICTURE.sub("", body))) - known == set()


def test_the_token_that_quest_misses_is_most_of_the_difference(traces: tuple[kvviz.Trace, kvviz.Trace]) -> None:
    prose = traces[0]
    weights, masses = primer_methods.exact(prose), []
    second = int((-weights).argsort()[1])
    for method, found in (("quest", False), ("clusterkv", True)):
        recording, step = primer_methods.played(prose, method)
        assert (primer_methods.groups_of(recording, step)[second] > -2) == found
        masses.append(recording.attention_mass(step, primer_methods.LAYER)[primer_methods.HEAD])
    assert weights[second] > 0.5 * (masses[1] - masses[0])


def test_the_evening_with_the_primer_takes_an_evening() -> None:
    primer = reading.primer()
    notebooks = [nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4) for name in reading.EVENING]
    assert primer.minutes + sum(reading.reading(each).minutes for each in notebooks) <= reading.EVENING_MINUTES
    assert PRIMER.split("\n")[2].startswith(f"*About {reading.rounded(primer.minutes)} minutes · ")
    assert (
        f"primer in pictures](docs/primer.md), {reading.rounded(primer.minutes)} minutes"
        in (ROOT / "README.md").read_text()
    )


def test_the_course_has_the_path_of_an_evening_with_its_minutes_and_questions() -> None:
    rows = [line.strip("| ").split(" | ") for line in COURSE.splitlines() if re.match(r"\| \d\d \| ", line)]
    names = [re.search(r"notebooks/(\w+)\.ipynb", row[1])[1] for row in rows]
    assert tuple(names) == reading.EVENING
    for name, (number, _, minutes, question, *_) in zip(names, rows, strict=True):
        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", 4)
        assert number == name[:2]
        assert abs(reading.reading(notebook).minutes - int(minutes)) <= 5, name
        assert notebook.cells[0].source.startswith(f"# {question}\n")
    (primer,) = re.findall(r"\[A primer in pictures\]\(primer\.md\) \| (\d+) \|", COURSE)
    assert int(primer) == reading.rounded(reading.primer().minutes)


def test_the_course_names_every_notebook_and_the_licence() -> None:
    linked = set(re.findall(r"\]\(\.\./notebooks/(\w+)\.ipynb\)", COURSE))
    assert linked == {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert "](../LICENSE)" in COURSE
