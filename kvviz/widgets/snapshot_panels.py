"""Panels of a snapshot, drawn as SVG: running text with tints, rows of coloured cells, dots, bars, and a table."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from .snapshot_svg import INK, INSIDE, MARGIN, MUTED, WIDTH, add, heading, width_of, wrapped, write, written

CHARACTER, LINE = 7.2, 19  # of 12 px monospace text
CHARACTERS, LINES = int(INSIDE / CHARACTER), 9  # of running text
GAP = "    "  # between numbers
BEFORE = 30  # tokens of the running text before the one at which it opens
MOST_TOKENS, LONGEST_NAME = 300, 30  # limits the size of the picture
UNPRINTED = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Mn", "Me")  # categories of Unicode


class Panel(Protocol):
    """A part of a snapshot: draws itself at `top` pixels and returns where it ends."""

    @property
    def alternative(self) -> str:
        """What it shows, in words; empty if title, place and numbers say it."""
        ...

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """Add the panel's elements to `root`."""
        ...


@dataclass(frozen=True)
class Passage:
    """Running text around the token `focus`: `fills` are colours by position, `lined` positions are underlined."""

    title: str
    tokens: Sequence[str]
    fills: Mapping[int, str]
    lined: frozenset[int] = frozenset()
    focus: int = 0
    alternative: str = ""

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """As `Panel.draw`."""
        top = heading(root, self.title, top)
        lines, column = [""], 0
        first = max(0, self.focus - BEFORE)
        for position in range(first, min(first + MOST_TOKENS, len(self.tokens))):
            text = _printable(self.tokens[position])
            cells = width_of(text)
            if column and column + cells > CHARACTERS:
                lines, column = [*lines, ""], 0
            if len(lines) > LINES:
                break
            self._mark(root, position, MARGIN + column * CHARACTER, top + (len(lines) - 1) * LINE, cells * CHARACTER)
            lines[-1] += text
            column += cells
            if "\n" in self.tokens[position]:
                lines, column = [*lines, ""], 0
        lines = lines[:LINES]
        font = add(root, "g", fill=INK)
        font.set("font-family", "ui-monospace, Consolas, 'DejaVu Sans Mono', monospace")
        for number, line in enumerate(lines):
            write(font, line, MARGIN, top + 13 + number * LINE, size=12, width=width_of(line) * CHARACTER)
        return top + len(lines) * LINE

    def _mark(self, root: ElementTree.Element, position: int, x: float, y: float, width: float) -> None:
        if position in self.fills:
            tint = add(root, "rect", x=x, y=y, width=width, height=LINE - 2, fill=self.fills[position])
            tint.set("data-position", str(position))
        if position in self.lined:
            add(root, "path", d=f"M{x:.1f} {y + LINE - 3:.1f}h{width:.1f}", stroke=INK)


@dataclass(frozen=True)
class Cells:
    """Rows of coloured cells, by name; None leaves a cell empty."""

    title: str
    rows: Sequence[tuple[str, Sequence[str | None]]]
    alternative: str = ""
    height: int = 14

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """As `Panel.draw`."""
        top = heading(root, self.title, top)
        left = MARGIN + max((width_of(name[:LONGEST_NAME]) for name, _ in self.rows), default=0) * CHARACTER
        left += 8 * (left > MARGIN)
        drawn: dict[str, list[str]] = {}
        for number, (name, colours) in enumerate(self.rows):
            y = top + number * (self.height + 1)
            if name:
                write(root, name[:LONGEST_NAME], MARGIN, y + min(self.height, 12), size=11, fill=MUTED)
            width = min((WIDTH - MARGIN - left) / max(len(colours), 1), 22)
            for colour, start, count in _runs(colours):
                bar = f"M{left + start * width:.1f} {y + self.height / 2:.1f}h{count * width:.1f}"
                drawn.setdefault(colour, []).append(bar)
        for colour, bars in drawn.items():
            add(root, "path", d="".join(bars), stroke=colour).set("stroke-width", str(self.height))
        return top + len(self.rows) * (self.height + 1) + 4


@dataclass(frozen=True)
class Dots:
    """Points in the plane, [N, 2], with the colour of each; `star` is drawn larger, in the colour of the text."""

    title: str
    points: NDArray[np.floating]
    colours: Sequence[str]
    star: NDArray[np.floating] | None = None
    alternative: str = ""

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """As `Panel.draw`."""
        top, height = heading(root, self.title, top), 240
        low, high = self.points.min(0), self.points.max(0)

        def place(point: NDArray[np.floating]) -> tuple[float, float]:
            across, up = np.clip((point - low) / np.maximum(high - low, 1e-12), 0, 1)
            return float(MARGIN + 6 + across * (INSIDE - 12)), float(top + 6 + (1 - up) * (height - 12))

        by_colour: dict[str, list[str]] = {}
        for point, colour in zip(self.points, self.colours, strict=True):
            x, y = place(point)
            by_colour.setdefault(colour, []).append(f"M{x:.0f} {y:.0f}h0")
        for colour, dots in by_colour.items():
            path = add(root, "path", d="".join(dots), stroke=colour)
            path.set("stroke-width", "4")
            path.set("stroke-linecap", "round")
        if self.star is not None:
            x, y = place(self.star)
            write(root, "★", x - 8, y + 6, size=18)
        return top + height


@dataclass(frozen=True)
class Bars:
    """A bar per score, best first, in the colour of each, counted from the lowest; those not filled are outlines."""

    title: str
    scores: NDArray[np.floating]
    colours: Sequence[str]
    filled: Sequence[bool]
    alternative: str = ""

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """As `Panel.draw`."""
        top, height = heading(root, self.title, top), 90
        width = min(INSIDE / max(len(self.scores), 1), 22)
        heights = self.scores - self.scores.min(initial=np.inf)
        heights = 2 + (height - 2) * heights / max(float(heights.max(initial=0)), 1e-12)
        for rank, (tall, colour, full) in enumerate(zip(heights.tolist(), self.colours, self.filled, strict=True)):
            left = MARGIN + rank * width
            bar = add(root, "rect", x=left, y=top + height - tall, width=width * 0.8, height=tall)
            bar.set("fill", colour if full else "none")
            bar.set("stroke", INK if full else colour)
            bar.set("stroke-width", f"{min(1.0, width / 5):.2f}")
        return top + height + 4


@dataclass(frozen=True)
class Table:
    """Named rows of numbers; the first row names the columns, and `about` says what each of them is about."""

    rows: Sequence[Sequence[str]] = field(default_factory=list)
    about: Sequence[str] = ()
    title: str = ""

    @property
    def alternative(self) -> str:
        """Each row in words."""
        head, *rows = self.rows
        if self.about:
            head = [f"{name} ({about})" for name, about in zip(head, self.about, strict=True)]
        return "; ".join(
            f"{row[0]}: " + ", ".join(f"{name} {value}" for name, value in zip(head[1:], row[1:], strict=True))
            for row in rows
        )

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """As `Panel.draw`."""
        names = INSIDE * 0.4
        step = (INSIDE - names) / max(len(self.rows[0]) - 1, 1)
        heads = [self.rows[0], *([self.about] if self.about else [])]
        rows = [*heads, *self.rows[1:]]
        for number, row in enumerate(rows):
            y = top + 14 + number * LINE
            for column, value in enumerate(row):
                x = MARGIN if column == 0 else MARGIN + names + column * step
                cell = write(root, value, x, y, size=12, fill=MUTED if number < len(heads) else INK)
                cell.set("text-anchor", "end" if column else "start")
        return top + len(rows) * LINE + 4


def svg(title: str, place: str, numbers: Sequence[tuple[str, str]], panels: Sequence[Panel], alternative: str) -> str:
    """A picture of panels below a title line, a place and numbers. Every text is escaped."""
    root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    add(root, "title").text = written(title)
    add(root, "desc").text = written(alternative)
    ground = add(root, "rect", width=WIDTH, fill="#ffffff")
    top = 28.0
    for line in wrapped(title, 84):
        write(root, line, MARGIN, top, size=15).set("font-weight", "600")
        top += 20
    if place:
        write(root, place, MARGIN, top, size=12, fill=MUTED)
        top += 20
    for line in wrapped(GAP.join(f"{name} {value}" for name, value in numbers), CHARACTERS, GAP):
        write(root, line, MARGIN, top, size=12)
        top += LINE
    for panel in panels:
        top = panel.draw(root, top) + 8
    ground.set("height", f"{top:.0f}")
    root.set("viewBox", f"0 0 {WIDTH} {top:.0f}")
    root.set("width", str(WIDTH))
    root.set("height", f"{top:.0f}")
    root.set("font-family", "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif")
    return ElementTree.tostring(root, encoding="unicode")


def stacked(pictures: Sequence[str]) -> str:
    """Pictures by `svg`, one below the other; a single one stays as it is."""
    if len(pictures) == 1:
        return pictures[0]
    tops = [0, *accumulate(int(ElementTree.fromstring(picture).get("height", "0")) for picture in pictures)]
    inside = [picture.replace("<svg ", f'<svg y="{top}" ', 1) for picture, top in zip(pictures, tops, strict=False)]
    size = f'viewBox="0 0 {WIDTH} {tops[-1]}" width="{WIDTH}" height="{tops[-1]}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(inside)}</svg>'


def _runs(colours: Sequence[str | None]) -> Iterator[tuple[str, int, int]]:
    """The colour, first cell and number of cells of each run of equal colours; empty cells are left out."""
    start = 0
    for place in range(1, len(colours) + 1):
        if place < len(colours) and colours[place] == colours[start]:
            continue
        colour = colours[start]
        if colour is not None:
            yield colour, start, place - start
        start = place


def _printable(token: str) -> str:
    """A token on one line: line ends as ↵; marks that would turn or join the text around them as a dot."""
    signs = token[:CHARACTERS].replace("\n", "↵").replace("\t", " ")
    return "".join("·" if unicodedata.category(sign) in UNPRINTED else sign for sign in signs)
