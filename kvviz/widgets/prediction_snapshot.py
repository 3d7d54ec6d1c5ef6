"""What the snapshot of a Prediction shows: its questions, and nothing that was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from .prediction_questions import Choice, Curve, Order, Value
from .snapshot_svg import INK, INSIDE, MARGIN, MUTED, add, wrapped, write

CHARACTERS, LINE = 100, 18  # of 13 px text
TALL, LEFT = 130, 48  # pixels: the height of a curve's axes, and the room for their numbers
DASHES = {"dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3", "longdash": "11 4", "longdashdot": "11 3 2 3"}


@dataclass(frozen=True)
class Asked:
    """A question, with what can be answered."""

    number: int
    question: Value | Choice | Order | Curve

    @property
    def alternative(self) -> str:
        """The question in words, with what can be answered."""
        return f"{self.number}. {self.question.text} {self.words}".rstrip(".")

    @property
    def words(self) -> str:
        """What can be answered, in words."""
        question = self.question
        if isinstance(question, Value):
            unit = f" {question.unit}" if question.unit else ""
            return f"A value from {question.low:,g} to {question.high:,g}{unit}."
        if isinstance(question, Choice):
            return f"Pick one: {' · '.join(question.options)}."
        if isinstance(question, Order):
            return f"Sort, the lowest first: {' · '.join(question.names)}."
        axes = f"{question.y_title or 'y'}, {question.low:g} to {question.high:g}, against {question.x_title or 'x'}"
        known = ", ".join(series["name"] for series in question.described()["known"])
        return f"Draw a curve: {axes}{f'; already drawn: {known}' if known else ''}."

    def draw(self, root: ElementTree.Element, top: float) -> float:
        """As `Panel.draw`."""
        for line in wrapped(f"{self.number}. {self.question.text}", CHARACTERS):
            write(root, line, MARGIN, top + 13, size=13).set("font-weight", "600")
            top += LINE
        for line in wrapped(self.words, CHARACTERS):
            write(root, line, MARGIN, top + 13, size=12, fill=MUTED)
            top += LINE
        return _axes(root, self.question, top + 6) if isinstance(self.question, Curve) else top + 6


def _axes(root: ElementTree.Element, question: Curve, top: float) -> float:
    """The axes of a curve, with the series that are known."""
    bottom, right = top + TALL, MARGIN + INSIDE
    places = [math.log(x) if question.log_x else x for x in question.x]
    across = [MARGIN + LEFT + (right - MARGIN - LEFT - 20) * (x - places[0]) / (places[-1] - places[0]) for x in places]
    add(root, "path", d=f"M{MARGIN + LEFT - 6} {top:.1f}V{bottom:.1f}H{right}", fill="none", stroke=MUTED)
    for value, y in ((question.high, top + 4), (question.low, bottom)):
        write(root, f"{value:g}", MARGIN + LEFT - 12, y, size=11, fill=MUTED).set("text-anchor", "end")
    for x in (0, -1):
        write(root, f"{question.x[x]:,g}", across[x], bottom + 15, size=11, fill=MUTED).set("text-anchor", "middle")
    for series in question.described()["known"]:
        heights = [bottom - TALL * (y - question.low) / (question.high - question.low) for y in series["values"]]
        line = add(root, "path", d=_path(across, heights), fill="none", stroke=series["light"] or INK, stroke_width=2)
        write(root, series["name"], across[-1], heights[-1] - 6, size=11).set("text-anchor", "end")
        if series["dash"] in DASHES:
            line.set("stroke-dasharray", DASHES[series["dash"]])
    return bottom + 24


def _path(across: Sequence[float], heights: Sequence[float]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(across, heights, strict=True))
