"""Checks of what the questions of a Prediction are made of; each raises InvalidInputError."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from ..errors import InvalidInputError

MOST_WORDS, MOST_CHARACTERS = 40, 280  # of a question's text
SLACK = 1e-9  # of the range: a mean of numbers within it may leave it by as much
MOST_ENTRIES = 24  # options, names or points: as many as can be answered by hand


def check_text(kind: str, text: Any) -> None:
    """Check the text of a question."""
    check_written(f"{kind}: text", text)
    words = len(text.split())
    if not words:
        raise InvalidInputError(f"{kind}: text", repr(text), "a question")
    if words > MOST_WORDS or len(text) > MOST_CHARACTERS:
        got = f"{words} words, {len(text)} characters"
        raise InvalidInputError(f"{kind}: text", got, f"at most {MOST_WORDS} words and {MOST_CHARACTERS} characters")


def check_written(what: str, text: Any, longest: int | None = None) -> None:
    """Check that it is text that can be encoded, of at most `longest` characters."""
    if not isinstance(text, str):
        raise InvalidInputError(what, repr(text), "text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(what, ascii(text), "text without half a surrogate pair") from error
    if longest is not None and len(text) > longest:
        raise InvalidInputError(what, f"{len(text)} characters", f"at most {longest}")


def names_of(what: str, names: Any) -> tuple[str, ...]:
    """Names that differ, as many as can be answered by hand."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(what, repr(names), "a list of texts")
    listed = tuple(names)
    for name in listed:
        check_written(what, name)
        if not name.strip() or len(name) > MOST_CHARACTERS:
            raise InvalidInputError(what, repr(name), f"1 to {MOST_CHARACTERS} characters")
    if not 2 <= len(listed) <= MOST_ENTRIES or len(set(listed)) < len(listed):
        raise InvalidInputError(what, repr(list(listed)), f"2 to {MOST_ENTRIES} different texts")
    return listed


def check_range(kind: str, low: Any, high: Any, *, log: bool = False) -> None:
    """Check that `low` is below `high`, and above 0 with `log`."""
    for name, value in (("low", low), ("high", high)):
        finite(f"{kind}: {name}", value)
    if low >= high:
        raise InvalidInputError(f"{kind}: low, high", f"{low}, {high}", "low below high")
    if log and low <= 0:
        raise InvalidInputError(f"{kind}: low", low, "a number above 0, for a logarithmic slider")


def numbers_of(what: str, values: Any) -> tuple[float, ...]:
    """A list of finite numbers."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InvalidInputError(what, repr(values), "a list of numbers")
    return tuple(finite(what, value) for value in values)


def finite(what: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInputError(what, repr(value), "a finite number")
    return float(value)


def inside(what: str, value: Any, low: float, high: float) -> float:
    """A number from `low` to `high`."""
    number = finite(what, value)
    slack = SLACK * (high - low)
    if not low - slack <= number <= high + slack:
        raise InvalidInputError(what, number, f"a number from {low} to {high}")
    return min(max(number, float(low)), float(high))
