"""Styles of methods. A method declares its style, its recordings carry it, and figures and widgets read it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import IncompatibleFileError, InvalidInputError
from .earlier import STYLES, TITLES

NEUTRAL = ("foreground", "muted")  # colours of the page's theme
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

# A method that declares no colour gets the muted colour of its kind.
_TONES = {
    "retrieval": "#7A8CA3", "eviction": "#A3877A", "merging": "#93839F", "prefill": "#86957E", "quantised": "#8F8A5E",
}  # fmt: skip
_SYMBOLS = ("pentagon", "hexagon", "star", "cross", "hourglass", "bowtie", "star-diamond")


@dataclass(frozen=True)
class Style:
    """The style of a method in all figures and widgets; fields that are None follow from its kind and name.

    `color` is "#rrggbb", or "foreground" or "muted", the neutral colours of the light or dark theme. `dash` and
    `symbol` are plotly's names, and distinguish methods without colour. Raises InvalidInputError for other values.
    """

    color: str | None = None
    dash: str | None = None
    symbol: str | None = None

    def __post_init__(self) -> None:
        if self.color is not None and self.color not in NEUTRAL and not re.fullmatch("#[0-9a-fA-F]{6}", self.color):
            raise InvalidInputError("Style: color", repr(self.color), f"#rrggbb, or one of {', '.join(NEUTRAL)}")
        if self.dash is not None and self.dash not in DASHES:
            raise InvalidInputError("Style: dash", repr(self.dash), f"one of {', '.join(DASHES)}")
        if self.symbol is not None and not re.fullmatch("[a-z]+(-[a-z]+)*", self.symbol):
            raise InvalidInputError("Style: symbol", repr(self.symbol), "the name of a plotly marker, like circle-open")

    def completed(self, name: str, kind: str | None = None) -> Style:
        """The complete style: the colour of the `kind`, and a dash and symbol that depend only on the `name`."""
        number = zlib.crc32(name.encode())  # hash() differs from one process to the next
        return Style(
            self.color or _TONES.get(kind or "", "muted"),
            self.dash or DASHES[number % len(DASHES)],
            self.symbol or _SYMBOLS[number // len(DASHES) % len(_SYMBOLS)],
        )


_declared: dict[str, Style] = {}
_titles: dict[str, str] = dict(TITLES)


def declare(name: str, style: Style, title: str) -> None:
    """Register the complete style of a method, and its name in print, when its class is defined."""
    _declared[name] = style
    _titles[name] = title


def known_titles() -> dict[str, str]:
    """The name in print of each method by its registry name: those that classes declare, and those of kvviz itself."""
    return dict(_titles)


def style_of(name: str, kind: str | None = None) -> Style:
    """The complete style of a method by its registry name.

    If its class is loaded, this is the style that the class declares. A process that only draws loads no methods and
    uses the style in the data (`Recording.style`, `table.attrs["styles"]`); for data without styles, this is the fixed
    style of the methods of that time, or else the colour of the `kind`.
    """
    if name in _declared:
        return _declared[name]
    return Style(*STYLES[name]) if name in STYLES else Style().completed(name, kind)


def known_colors() -> set[str]:
    """The colours of all styles that `style_of` may return, without the neutral ones."""
    styles = [*_declared.values(), *(Style(*style) for style in STYLES.values())]
    return {style.color for style in styles if style.color and style.color not in NEUTRAL} | set(_TONES.values())


def load_style(values: object, operation: str) -> Style:
    """The style stored in a file or a table's attrs. Raises IncompatibleFileError if the values are no style."""
    wanted = 'an object with "color", "dash" or "symbol"'
    if not isinstance(values, Mapping) or not all(isinstance(value, str) for value in values.values()):
        raise IncompatibleFileError(operation, repr(values), wanted)
    fields: dict[str, Any] = dict(values)
    try:
        return Style(**fields)
    except TypeError as error:
        raise IncompatibleFileError(operation, repr(values), wanted) from error
    except InvalidInputError as error:
        raise IncompatibleFileError(operation, f"{error.operation} {error.got}", error.wanted) from error
