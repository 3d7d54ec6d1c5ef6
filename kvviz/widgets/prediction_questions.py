"""Questions of a Prediction: a value, a choice, an order, a curve; each with what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any, Protocol

from ..errors import InvalidInputError
from ..trace.styles import DASHES, Style, known_titles

MOST_WORDS, MOST_CHARACTERS = 40, 280  # of a question's text
MOST_ENTRIES = 24  # options, names or points: as many as can be answered by hand
SYMBOLS = ("diamond", "square", "triangle-up", "x", "triangle-down", "cross", "star")  # of series that are no methods


class Question(Protocol):
    """A question of a Prediction."""

    @property
    def text(self) -> str:
        """The question, as plain text."""
        ...

    def described(self) -> dict[str, Any]:
        """What the browser draws, as JSON; its "measured" is drawn only after the reader has answered."""
        ...

    def check(self, answer: Any) -> Any:
        """The answer as JSON; raises InvalidInputError for one that cannot be given."""
        ...


@dataclass(frozen=True)
class Value:
    """A number from `low` to `high`, which the reader sets with a slider; hidden: `measured`.

    The answer has `digits` decimals. With `log`, the slider is logarithmic, and the answer is compared as a ratio.
    Raises InvalidInputError for numbers that are not finite, `low` not below `high`, or `measured` outside of them.
    """

    text: str
    measured: float
    low: float
    high: float
    unit: str = ""
    digits: int = 0
    log: bool = False

    def __post_init__(self) -> None:
        _check_text("Value", self.text)
        _check_range("Value", self.low, self.high, log=self.log)
        _inside("Value: measured", self.measured, self.low, self.high)
        if isinstance(self.digits, bool) or not isinstance(self.digits, int) or not 0 <= self.digits <= 6:
            raise InvalidInputError("Value: digits", repr(self.digits), "a whole number from 0 to 6")
        if self.log and self.low < 0.5 * 10**-self.digits:
            raise InvalidInputError("Value: digits", self.digits, f"as many as {self.low} needs")
        _check_written("Value: unit", self.unit)

    def described(self) -> dict[str, Any]:
        """As `Question.described`."""
        numbers = {name: float(getattr(self, name)) for name in ("measured", "low", "high")}
        words = {"text": self.text, "unit": self.unit, "digits": self.digits, "log": bool(self.log)}
        return {"kind": "value", **words, **numbers}

    def check(self, answer: Any) -> float | int:
        """As `Question.check`."""
        number = round(_inside(f"answer to {self.text!r}", answer, self.low, self.high), self.digits)
        return number if self.digits else int(number)


@dataclass(frozen=True)
class Choice:
    """One of the `options`, which the reader picks; hidden: `measured`, the option that is right.

    Raises InvalidInputError for fewer than two options, options that are equal, or a `measured` that is none of them.
    """

    text: str
    measured: str
    options: Sequence[str]

    def __post_init__(self) -> None:
        _check_text("Choice", self.text)
        object.__setattr__(self, "options", _names("Choice: options", self.options))
        self._one_of("Choice: measured", self.measured)

    def described(self) -> dict[str, Any]:
        """As `Question.described`."""
        return {"kind": "choice", "text": self.text, "measured": self.measured, "options": list(self.options)}

    def check(self, answer: Any) -> str:
        """As `Question.check`."""
        return self._one_of(f"answer to {self.text!r}", answer)

    def _one_of(self, what: str, value: Any) -> str:
        if not isinstance(value, str) or value not in self.options:
            raise InvalidInputError(what, repr(value), f"one of {', '.join(map(repr, self.options))}")
        return value


@dataclass(frozen=True)
class Order:
    """The names of `measured`, which the reader sorts by their numbers, the lowest first; hidden: the numbers.

    The names first stand in alphabetical order. Raises InvalidInputError for fewer than two names, numbers that are not
    finite, or numbers that are all equal.
    """

    text: str
    measured: Mapping[str, float]

    def __post_init__(self) -> None:
        _check_text("Order", self.text)
        if not isinstance(self.measured, Mapping):
            raise InvalidInputError(
                "Order: measured", type(self.measured).__name__, "a number for each name, as a dict"
            )
        names = _names("Order: names", self.measured)
        numbers = {name: _finite(f"Order: measured of {name!r}", self.measured[name]) for name in names}
        if len(set(numbers.values())) == 1:
            raise InvalidInputError("Order: measured", "equal numbers", "at least two that differ")
        object.__setattr__(self, "measured", numbers)

    @property
    def names(self) -> list[str]:
        """The names in the order in which they first stand."""
        return sorted(self.measured, key=lambda name: (name.casefold(), name))

    def described(self) -> dict[str, Any]:
        """As `Question.described`."""
        sort = sorted(self.measured.items(), key=lambda pair: pair[1])
        return {"kind": "order", "text": self.text, "names": self.names, "measured": [list(pair) for pair in sort]}

    def check(self, answer: Any) -> list[str]:
        """As `Question.check`."""
        names = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, str) else [answer]
        if not all(isinstance(name, str) for name in names) or sorted(names) != sorted(self.measured):
            wanted = f"the names in the order expected: {', '.join(map(repr, self.names))}"
            raise InvalidInputError(f"answer to {self.text!r}", repr(answer), wanted)
        return names


@dataclass(frozen=True)
class Curve:
    """A number for each `x`, which the reader draws as a curve from `low` to `high`; hidden: `measured`.

    `measured` is a list, or {series name: list}, of which the reader draws the first. `known` series, {name: list}, are
    drawn from the start. A series that is named like a method has that method's colour, dash and marker.

    Raises InvalidInputError for an `x` that does not increase, series of another length, and numbers that are not
    finite or not from `low` to `high`.
    """

    text: str
    x: Sequence[float]
    measured: Sequence[float] | Mapping[str, Sequence[float]]
    x_title: str = ""
    y_title: str = ""
    low: float = 0.0
    high: float = 1.0
    log_x: bool = False
    known: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_text("Curve", self.text)
        _check_range("Curve", self.low, self.high)
        places = _numbers("Curve: x", self.x)
        if not 2 <= len(places) <= MOST_ENTRIES:
            raise InvalidInputError("Curve: x", f"{len(places)} numbers", f"2 to {MOST_ENTRIES} numbers")
        if any(after <= before for before, after in pairwise(places)):
            raise InvalidInputError("Curve: x", repr(list(self.x)), "numbers that increase")
        if self.log_x and places[0] <= 0:
            raise InvalidInputError("Curve: x", places[0], "numbers above 0, for a logarithmic axis")
        object.__setattr__(self, "x", places)
        measured = self.measured if isinstance(self.measured, Mapping) else {"measured": self.measured}
        object.__setattr__(self, "measured", self._checked("measured", measured))
        object.__setattr__(self, "known", self._checked("known", self.known))
        if not measured:
            raise InvalidInputError("Curve: measured", "no series", "at least one")
        if both := set(measured) & set(self.known):
            raise InvalidInputError("Curve: known", ", ".join(both), "series that are not measured too")
        for name in ("x_title", "y_title"):
            _check_written(f"Curve: {name}", getattr(self, name))

    def described(self) -> dict[str, Any]:
        """As `Question.described`."""
        assert isinstance(self.measured, Mapping)
        known, measured = _series(self.known, 0), _series(self.measured, len(self.known))
        titles = {"x_title": self.x_title, "y_title": self.y_title, "log_x": bool(self.log_x)}
        shape = {"x": list(self.x), "low": float(self.low), "high": float(self.high)}
        return {"kind": "curve", "text": self.text, **titles, **shape, "known": known, "measured": measured}

    def check(self, answer: Any) -> list[float]:
        """As `Question.check`."""
        return list(self._heights(f"answer to {self.text!r}", answer))

    def _checked(self, what: str, series: Any) -> dict[str, tuple[float, ...]]:
        if not isinstance(series, Mapping):
            raise InvalidInputError(
                f"Curve: {what}", type(series).__name__, "a list of numbers for each name, as a dict"
            )
        for name in series:
            _check_written(f"Curve: names of {what}", name)
        return {name: self._heights(f"Curve: {what} {name!r}", values) for name, values in series.items()}

    def _heights(self, what: str, values: Any) -> tuple[float, ...]:
        heights = _numbers(what, values)
        if len(heights) != len(self.x):
            raise InvalidInputError(what, f"{len(heights)} numbers", f"{len(self.x)}: one for each x")
        return tuple(_inside(what, height, self.low, self.high) for height in heights)


def check_all(questions: Sequence[Any]) -> None:
    """Raises InvalidInputError for no questions, for anything else, and for two with the same text."""
    if not questions:
        raise InvalidInputError("Prediction", "no questions", "at least one: Value, Choice, Order or Curve")
    for question in questions:
        if not isinstance(question, Value | Choice | Order | Curve):
            raise InvalidInputError("Prediction", type(question).__name__, "Value, Choice, Order or Curve")
    texts = [question.text for question in questions]
    for text in texts:
        if texts.count(text) > 1:
            raise InvalidInputError("Prediction", f"{text!r} twice", "texts that differ: answers are named by them")


def _series(series: Mapping[str, Sequence[float]], before: int) -> list[dict[str, Any]]:
    """Series with the title and looks of each; `before` others have been given looks already."""
    from ..plots.theme import method_style  # loads plotly

    titles, described = known_titles(), []
    for number, (name, values) in enumerate(series.items(), before):
        dark, light = (method_style(name, dark=dark) for dark in (True, False))
        if name not in titles:  # the looks of a name would not tell two of them apart
            own = Style("foreground", DASHES[number % len(DASHES)], SYMBOLS[number % len(SYMBOLS)])
            dark = light = {"color": "", "dash": own.dash or "", "symbol": own.symbol or ""}
        looks = {"dash": light["dash"], "symbol": light["symbol"], "light": light["color"], "dark": dark["color"]}
        described.append({"name": titles.get(name, name), "values": list(values), **looks})
    return described


def _check_text(kind: str, text: Any) -> None:
    _check_written(f"{kind}: text", text)
    words = len(text.split())
    if not words:
        raise InvalidInputError(f"{kind}: text", repr(text), "a question")
    if words > MOST_WORDS or len(text) > MOST_CHARACTERS:
        got = f"{words} words, {len(text)} characters"
        raise InvalidInputError(f"{kind}: text", got, f"at most {MOST_WORDS} words and {MOST_CHARACTERS} characters")


def _check_written(what: str, text: Any) -> None:
    """Raises InvalidInputError for anything but text that can be encoded."""
    if not isinstance(text, str):
        raise InvalidInputError(what, repr(text), "text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(what, ascii(text), "text without half a surrogate pair") from error


def _names(what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidInputError(what, repr(names), "a list of texts")
    listed = tuple(names)
    for name in listed:
        _check_written(what, name)
        if not name.strip() or len(name) > MOST_CHARACTERS:
            raise InvalidInputError(what, repr(name), f"1 to {MOST_CHARACTERS} characters")
    if not 2 <= len(listed) <= MOST_ENTRIES or len(set(listed)) < len(listed):
        raise InvalidInputError(what, repr(list(listed)), f"2 to {MOST_ENTRIES} different texts")
    return listed


def _check_range(kind: str, low: Any, high: Any, *, log: bool = False) -> None:
    for name, value in (("low", low), ("high", high)):
        _finite(f"{kind}: {name}", value)
    if low >= high:
        raise InvalidInputError(f"{kind}: low, high", f"{low}, {high}", "low below high")
    if log and low <= 0:
        raise InvalidInputError(f"{kind}: low", low, "a number above 0, for a logarithmic slider")


def _numbers(what: str, values: Any) -> tuple[float, ...]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise InvalidInputError(what, repr(values), "a list of numbers")
    return tuple(_finite(what, value) for value in values)


def _finite(what: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InvalidInputError(what, repr(value), "a finite number")
    return float(value)


def _inside(what: str, value: Any, low: float, high: float) -> float:
    number = _finite(what, value)
    if not low <= number <= high:
        raise InvalidInputError(what, number, f"a number from {low} to {high}")
    return number
