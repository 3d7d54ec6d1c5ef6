"""docs/glossary.md has the terms that notebooks and pages link to, in the words of the widgets."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from tests.widgets.javascript import deno

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text()
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# The entries that a widget explains too: what to print in Deno, after "name: " up to its end.
IN_WIDGETS = {
    "agreed": "words.marksOf(true).find(([, name]) => name === 'agreed')[2]",
    "attention-mass": "words.MEANING.mass",
    "evidence": "misses.MEANING.evidence.split('; tinted are ')[1].split(', the more')[0]",
    "log-probability": "misses.MEANING.logprob.split('answer: the ')[1]",
    "metadata": "explorer.MEANING.metadata",
    "missed": "words.marksOf(true).find(([, name]) => name === 'missed')[2]",
    "moved": "words.MEANING.moved",
    "output-error": "words.MEANING.error",
    "recall": "words.MEANING.recall",
    "wasted": "words.marksOf(true).find(([, name]) => name === 'wasted')[2]",
}


def anchor(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^##* (.+)$", text, re.MULTILINE)}


def entries() -> dict[str, str]:
    """The plain text of each entry, by its anchor."""
    parts = [part.partition("\n\n") for part in GLOSSARY.split("\n## ")[1:]]
    return {anchor(name): re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).strip() for name, _, text in parts}


def text_of(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    return "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown")


def test_terms_are_in_alphabetical_order_with_at_most_three_sentences() -> None:
    names = [part.partition("\n")[0] for part in GLOSSARY.split("\n## ")[1:]]
    assert names == sorted(names, key=str.lower)
    for name, entry in entries().items():
        definition, _, where = entry.partition(" *See ")
        assert where.endswith(".*"), name
        assert 1 <= len(re.findall(r"[.!?](?=\s|$)", definition)) <= 3, name


@pytest.mark.parametrize("path", [*NOTEBOOKS, *sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda p: p.stem)
def test_links_to_a_heading_of_a_page_have_it(path: Path) -> None:
    text = text_of(path)
    for page, target in re.findall(r"\]\((?!https?:)([^)#\s]*\.md)?#([^)\s]+)\)", text):
        linked = (path.parent / page).read_text() if page else text
        assert target in anchors(linked), f"{page}#{target}"


def test_entries_say_what_the_widgets_say() -> None:
    modules = "; ".join(f'import * as {name} from "./{file}.js"' for name, file in (
        ("words", "words"), ("explorer", "explorer_words"), ("misses", "misses_words"),
    ))  # fmt: skip
    wanted = ", ".join(f"{json.dumps(name)}: {code}" for name, code in IN_WIDGETS.items())
    process = deno("eval", f"{modules}; console.log(JSON.stringify({{{wanted}}}));")
    assert process.returncode == 0, process.stderr
    for name, meaning in json.loads(process.stdout).items():
        said = re.sub(r"^[\w ]+: ", "", meaning).lower()
        assert said in entries()[name].lower(), name


MAIN_TERMS = {
    "00": {"kv-cache", "budget", "recall"}, "01": {"kv-head", "rope", "merging"},
    "02": {"query-centroid", "query-key-value"},
    "03": {"page", "bound", "budget", "sinks"}, "04": {"cluster", "centroid", "recall"}, "05": {"merging", "centroid"},
    "06": {"codebook", "code"}, "07": {"query-centroid", "inverted-list", "rerank"}, "08": {"offload", "block-cache"},
    "09": {"decode-step", "budget"}, "10": {"budget", "recall"}, "11": {"budget", "oracle"}, "12": {"budget"},
    "13": {"kv-head", "recall", "needle"},
}  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_links_its_main_terms(path: Path) -> None:
    assert MAIN_TERMS[path.stem[:2]] <= set(re.findall(r"\]\(\.\./docs/glossary\.md#([\w-]+)\)", text_of(path)))
