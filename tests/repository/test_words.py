"""The check of phrases that kvviz does not use, which `make lint` runs over all texts."""

from __future__ import annotations

import pytest

from tests.repository.words import PHRASES, found_in, texts

REFUSED = (
    "Quest attends 128 tokens", "methods attend only a budget", "attending an eighth", "attended the token",
    "tokens that were attended;", "one row a step", "16 bits a token", "ms a token", "It pays with memory",
    "The positions are attended at the step", "that the\n    # oracle's were attended, too",
)  # fmt: skip
ALLOWED = (
    "Quest attends to 128 tokens", "attended tokens", "tokens that were attended to", "one row per step",
    "which tokens a step attends to", "important tokens a page holds", "selecting and attending then",
    "a line per panel", "a function that attends(query)",
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_a_phrase_is_found_with_what_to_write(text):
    (found,) = found_in("README.md", f"Before it. {text} And more.")
    assert found.write in PHRASES.values()
    assert str(found).startswith("README.md: …")


@pytest.mark.parametrize("text", ALLOWED)
def test_what_is_right_is_left_alone(text):
    assert [*found_in("README.md", text)] == []


def test_markdown_is_read_without_its_code_and_notebooks_cell_by_cell():
    read = dict(texts())
    assert "pip install" not in read["README.md"]
    assert "What does a page of 16 tokens hold?" in read["notebooks/03_page_fragmentation.ipynb, cell 0"]
    assert all(not file.startswith("kvviz/widgets/static/") for file in read)
