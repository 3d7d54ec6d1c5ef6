"""How long a notebook or a page takes to read and do: its words, and minutes by what it holds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

WORDS_PER_MINUTE = 200  # of technical prose in a second language; 240 are usual for fluent readers
FIGURE_MINUTES, WIDGET_MINUTES, EXERCISE_MINUTES = 1.0, 4.0, 8.0  # to look at, to play with, to solve
EVENING = ("00_quickstart", "03_page_fragmentation", "04_clusterkv", "06_pqcache", "07_ctkvr")
PRIMER = Path(__file__).resolve().parents[1] / "docs" / "primer.md"  # read before them, in the same evening
EVENING_MINUTES = 180
_WIDGET, _FIGURE = "application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json"


@dataclass(frozen=True)
class Reading:
    """A notebook's words, those `before` its first figure or widget, and its figures, widgets and exercises."""

    words: int
    before: int
    figures: int
    widgets: int
    exercises: int

    @property
    def minutes(self) -> float:
        """Minutes to read and do it."""
        doing = self.figures * FIGURE_MINUTES + self.widgets * WIDGET_MINUTES + self.exercises * EXERCISE_MINUTES
        return self.words / WORDS_PER_MINUTE + doing

    def __str__(self) -> str:
        return f"{self.words:,} words ({self.before} before the first picture), about {self.minutes:.0f} minutes"


def reading(notebook: nbformat.NotebookNode) -> Reading:
    """The Reading of a notebook with its outputs; words are those of its text, without code."""
    words, before, figures, widgets, exercises = 0, None, 0, 0, 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            words += len(cell.source.split())
            exercises += cell.source.count("## Exercise")
            continue
        for data in (output.get("data", {}) for output in cell.get("outputs", ())):
            is_widget = _WIDGET in data
            is_figure = not is_widget and (_FIGURE in data or "image/png" in data)
            widgets, figures = widgets + is_widget, figures + is_figure
            if before is None and (is_widget or is_figure):
                before = words
    return Reading(words, words if before is None else before, figures, widgets, exercises)


def reading_of_page(markdown: str) -> Reading:
    """The Reading of a Markdown page with pictures; neither links' addresses nor descriptions of pictures are words."""
    pictures = re.findall(r"!\[[^\]]*\]\([^)]*\)", markdown)
    before, *rest = re.split(r"!\[[^\]]*\]\([^)]*\)", markdown)
    words = [len(re.sub(r"\]\([^)]*\)", "]", part).split()) for part in (before, *rest)]
    return Reading(sum(words), words[0], len(pictures), widgets=0, exercises=0)


def primer() -> Reading:
    """The Reading of the primer."""
    return reading_of_page(PRIMER.read_text(encoding="utf-8"))


def rounded(minutes: float) -> int:
    """Minutes as headers give them, to 5."""
    return 5 * round(minutes / 5)


def header(name: str, names: list[str], minutes: float) -> str:
    """The line of a notebook's first cell that says how long it takes, and which notebooks come before and after it.

    `names` are all notebooks in order; minutes are rounded to 5. On the path of an evening, it shows the path too.
    """
    place = names.index(name)
    around = [(word, names[at]) for word, at in (("before", place - 1), ("next", place + 1)) if 0 <= at < len(names)]
    links = " · ".join(f"{word}: [{other[:2]}]({other}.ipynb)" for word, other in around)
    path = " → ".join(f"**{each[:2]}**" if each == name else f"[{each[:2]}]({each}.ipynb)" for each in EVENING)
    return f"*About {rounded(minutes)} minutes{f' · an evening: {path}' if name in EVENING else ''} · {links}*"


def with_header(notebook: nbformat.NotebookNode, name: str, names: list[str]) -> None:
    """Put the header below the title of a notebook with its outputs, in place of the one that is there."""
    title, *lines = notebook.cells[0].source.split("\n")
    body = "\n".join(lines).strip()
    if body.startswith("*About "):
        body = body.partition("\n")[2].strip()
    notebook.cells[0].source = f"{title}\n\n{header(name, names, reading(notebook).minutes)}\n\n{body}"
