"""How wide a text is, without a browser or a font file."""

from __future__ import annotations

import html
import re
import unicodedata

from .letter_widths import SANS, SERIF

_OTHER = 1.3  # em, letters of other scripts: an emoji is the widest
UNITS = re.compile(r"<[^>]*>|&[^;\s]*;|.", re.DOTALL)  # a tag, an entity or a letter


def text_width(text: str, serif: bool = False) -> float:
    """An upper bound of the width of the widest line of a figure's text, in em (multiples of the type size).

    `text` is what plotly reads: entities count as their characters, "<br>" begins a line, other tags have no width.

    >>> round(text_width("recall"), 2), round(text_width("a &lt; b<br>c"), 2)
    (2.77, 2.74)
    """
    widths = SERIF if serif else SANS
    return max(sum(_unit_width(unit, widths) for unit in UNITS.findall(line)) for line in text.split("<br>"))


def _unit_width(unit: str, widths: dict[str, float]) -> float:
    if unit.startswith("<") and len(unit) > 1:
        return 0.0
    letters = unicodedata.normalize("NFD", html.unescape(unit).replace("\xa0", " "))  # accents apart
    return sum(0.0 if unicodedata.combining(letter) else widths.get(letter, _OTHER) for letter in letters)
