"""Edits: what a person changes in a method's choice, as values that combine with | and can be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations
from numbers import Integral
from typing import Any, ClassVar, Literal

from ..errors import IncompatibleFileError, InvalidInputError
from .geometry import Geometry
from .text_positions import token_positions

Tokens = str | re.Pattern[str] | int | slice | Iterable[int]
Budget = Literal["same", "extra"]
By = Literal["oracle", "full"]
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One change, in some layers, KV heads and decode steps (from 0, the question's included); None means all."""

    kind: ClassVar[str]

    layers: Numbers | None = None
    heads: Numbers | None = None
    steps: Numbers | None = None

    def concerns(self, layer: int) -> bool:
        """Whether this may change the layer's selections."""
        return self.layers is None or layer in self.layers

    def overlaps(self, other: Part) -> bool:
        """Whether a layer, head and step has both."""
        pairs = ((self.layers, other.layers), (self.heads, other.heads), (self.steps, other.steps))
        return all(one is None or two is None or set(one) & set(two) for one, two in pairs)


@dataclass(frozen=True)
class Pin(Part):
    """These tokens are attended to; see `pin`."""

    kind = "pin"

    tokens: Tokens = ()
    budget: Budget = "same"


@dataclass(frozen=True)
class Drop(Part):
    """These tokens are not attended to; see `drop`."""

    kind = "drop"

    tokens: Tokens = ()


@dataclass(frozen=True)
class Exact(Part):
    """These heads attend exactly; see `exact`."""

    kind = "exact"

    by: By = "oracle"


@dataclass(frozen=True)
class Only(Part):
    """All other heads attend to all tokens; see `only`."""

    kind = "only"

    def concerns(self, layer: int) -> bool:
        """Whether this may change the layer's selections."""
        return self.heads is not None or self.layers is None or layer not in self.layers


@dataclass(frozen=True)
class Edit:
    """Changes to what decode steps attend to; `|` combines edits. Made by `pin`, `drop`, `exact` and `only`.

    Positions count from the first token of the prompt, layers, KV heads and steps from 0. A prompt is always prefilled
    without edits: a dropped token has still been seen by the prompt's later tokens. Two parts of an edit that
    contradict each other are refused: a token pinned and dropped in the same place, heads that are exact by both
    "oracle" and "full", or `only` where it meets another `only` or `exact`.
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        for one, two in combinations(self.parts, 2):
            if one.overlaps(two):
                _check_together(one, two)

    def __or__(self, other: Edit) -> Edit:
        return Edit((*self.parts, *other.parts))

    @property
    def resolved(self) -> bool:
        """Whether all tokens are given as positions, so that the prompt is not needed."""
        return all(isinstance(part.tokens, tuple) for part in self.parts if isinstance(part, Pin | Drop))

    def of_layer(self, layer: int) -> tuple[Part, ...]:
        """The parts that may change this layer's selections."""
        return tuple(part for part in self.parts if part.concerns(layer))

    def on(self, tokens: Sequence[str], geometry: Geometry) -> Edit:
        """The same edit with all tokens as positions in a prompt, given as the text of each of its tokens.

        Raises InvalidInputError for text that does not occur in the prompt, or more than once, a pattern without a
        match, a position outside the prompt, a layer or head outside the model, and parts that contradict each other.
        """
        for part in self.parts:
            _check_inside(part.kind, "layers", part.layers, geometry.n_layers)
            _check_inside(part.kind, "heads", part.heads, geometry.n_kv_heads)
        return Edit(
            tuple(
                replace(part, tokens=token_positions(part.kind, part.tokens, tokens))
                if isinstance(part, Pin | Drop)
                else part
                for part in self.parts
            )
        )

    @property
    def config(self) -> list[dict[str, Any]]:
        """The parts as plain data, which JSON can store. Raises InvalidInputError before the edit is resolved."""
        if not self.resolved:
            raise InvalidInputError("config of an edit", "tokens given as text", "positions: edit.on(tokens, geometry)")
        return [
            {"kind": part.kind} | {field.name: getattr(part, field.name) for field in fields(part)}
            for part in self.parts
        ]

    @classmethod
    def from_config(cls, config: Iterable[Mapping[str, Any]]) -> Edit:
        """The edit of a `config`. Raises InvalidInputError for anything else."""
        edit = cls()
        for entry in config:
            values = dict(entry)
            make = MAKERS.get(values.pop("kind", ""))
            wanted = f"one of {', '.join(MAKERS)} and its fields"
            if make is None or not all(isinstance(value, list | tuple | str | None) for value in values.values()):
                raise InvalidInputError("edit", f"the part {dict(entry)}", wanted)
            try:
                edit |= make(**values)
            except TypeError as error:
                raise InvalidInputError("edit", f"the part {dict(entry)}", wanted) from error
        return edit


def load_edit(config: Iterable[Mapping[str, Any]], operation: str) -> Edit:
    """The edit of a file. Raises IncompatibleFileError for anything but a valid `config`."""
    try:
        return Edit.from_config(config)
    except (InvalidInputError, TypeError) as error:
        raise IncompatibleFileError(operation, str(error), "the config of an edit") from error


def pin(
    tokens: Tokens,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    budget: Budget = "same",
) -> Edit:
    """An edit with which these tokens are attended to, whatever the method chooses.

    `tokens`: text that occurs once in the prompt, a compiled regular expression (all matches), a position or positions,
    or a slice of them. `heads` are KV heads. With `budget="same"` they displace the method's lowest-ranked tokens, and
    then the oldest of those that it did not rank, but never sinks or the step's own token; with "extra" they come on
    top. An evicted token is kept, a merged one is taken out of its centroid.
    """
    if budget not in ("same", "extra"):
        raise InvalidInputError("pin: budget", repr(budget), "'same' or 'extra'")
    return Edit((Pin(*_numbers("pin", layers, heads, steps), _tokens("pin", tokens), budget),))


def drop(
    tokens: Tokens,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
) -> Edit:
    """An edit with which these tokens, as in `pin`, are not attended to, by full attention either.

    Their places in the budget stay empty. A merged token is taken out of its centroid.
    """
    return Edit((Drop(*_numbers("drop", layers, heads, steps), _tokens("drop", tokens)),))


def exact(
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    by: By = "oracle",
) -> Edit:
    """An edit with which these KV heads attend exactly.

    By "oracle" to their tokens with the largest exact attention weights, as many as the method attended to; by "full"
    to all tokens.
    """
    if by not in ("oracle", "full"):
        raise InvalidInputError("exact: by", repr(by), "'oracle' or 'full'")
    return Edit((Exact(*_numbers("exact", layers, heads, steps), by),))


def only(
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
) -> Edit:
    """An edit with which the method chooses for these layers and KV heads only; all others attend to all tokens."""
    return Edit((Only(*_numbers("only", layers, heads, steps)),))


MAKERS: Mapping[str, Callable[..., Edit]] = {"pin": pin, "drop": drop, "exact": exact, "only": only}


def _numbers(
    operation: str, layers: Collection[int] | None, heads: Collection[int] | None, steps: Collection[int] | None
) -> tuple[Numbers | None, Numbers | None, Numbers | None]:
    return (
        _numbers_of(f"{operation}: layers", layers),
        _numbers_of(f"{operation}: heads", heads),
        _numbers_of(f"{operation}: steps", steps),
    )


def _numbers_of(operation: str, numbers: Collection[int] | None) -> Numbers | None:
    if numbers is None:
        return None
    listed = list(numbers) if isinstance(numbers, Collection) and not isinstance(numbers, str) else []
    if not listed or not all(type(number) is int and number >= 0 for number in listed):
        raise InvalidInputError(
            operation, repr(numbers), "a collection of numbers from 0, such as [0, 3]; None for all"
        )
    return tuple(sorted(set(listed)))


def _tokens(operation: str, tokens: Tokens) -> Tokens:
    """The tokens, positions as a tuple; checked as far as is possible without the prompt."""
    if isinstance(tokens, re.Pattern | slice) or (isinstance(tokens, str) and tokens):
        return tokens
    wanted = "text, a compiled regular expression, a position from 0, positions, or a slice"
    listed = tokens if isinstance(tokens, Iterable) and not isinstance(tokens, str) else (tokens,)
    found = tuple(sorted({int(token) for token in listed if isinstance(token, Integral) and token >= 0}))
    if not found or len(found) != len(set(listed)) or isinstance(tokens, bool):
        raise InvalidInputError(f"{operation}: tokens", repr(tokens), wanted)
    return found


def _check_inside(operation: str, name: str, numbers: Numbers | None, count: int) -> None:
    if numbers is not None and numbers[-1] >= count:
        of_what = "layers" if name == "layers" else "KV heads"
        wanted = f"0 to {count - 1}: the model has {count} {of_what}"
        raise InvalidInputError(f"{operation}: {name}", numbers[-1], wanted)


def _check_together(one: Part, two: Part) -> None:
    """Raise InvalidInputError if two parts that overlap contradict each other."""
    kinds = {one.kind, two.kind}
    if kinds == {"pin", "drop"}:
        both = _positions(one) & _positions(two)
        if both:
            got = f"position {min(both)} pinned and dropped in the same layer, head and step"
            raise InvalidInputError("edit", got, "one of the two")
    if kinds == {"exact"} and isinstance(one, Exact) and isinstance(two, Exact) and one.by != two.by:
        raise InvalidInputError("edit", "heads that are exact by both 'oracle' and 'full'", "one of the two")
    if "only" in kinds and kinds <= {"only", "exact"}:
        other = "'exact' in the heads of 'only'" if "exact" in kinds else "'only' twice in the same heads"
        raise InvalidInputError("edit", other, "'only' for the heads in which the method chooses, 'exact' for others")


def _positions(part: Part) -> set[int]:
    tokens = part.tokens if isinstance(part, Pin | Drop) else ()
    return set(tokens) if isinstance(tokens, tuple) else set()
