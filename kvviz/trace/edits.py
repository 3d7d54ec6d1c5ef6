"""Edits: what a person changes in a method's choice, as values that combine with | and can be stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as changed
from itertools import combinations
from numbers import Integral
from typing import Any

from ..errors import IncompatibleFileError, InvalidInputError, UnknownNameError
from .edit_parts import (
    Budget,
    By,
    Drop,
    Exact,
    Group,
    Numbers,
    Only,
    Part,
    Pin,
    Replace,
    Tokens,
    check_together,
)
from .geometry import Geometry
from .outcomes import VERDICTS
from .text_positions import token_positions


@dataclass(frozen=True)
class Edit:
    """Changes to what decode steps attend to; `|` combines edits. Made by `pin`, `drop`, `exact`, `only` and `replace`.

    Positions count from the first token of the prompt, layers, KV heads, steps and rows from 0. Rows are the sequences
    of a batch (`SelectiveCache`); an edit of some rows changes nothing in others. A prompt is always prefilled without
    edits: a dropped token has still been seen by the prompt's later tokens. Two parts of an edit that
    contradict each other are refused: a token pinned and dropped in the same place, heads that are exact by both
    "oracle" and "full", `only` where it meets another `only` or `exact`, or `replace` where it meets `exact` or another
    stage.
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        for one, two in combinations(self.parts, 2):
            if one.overlaps(two):
                check_together(one, two)

    def __or__(self, other: Edit) -> Edit:
        return Edit((*self.parts, *other.parts))

    @property
    def resolved(self) -> bool:
        """Whether all tokens are given as positions, so that the prompt is not needed."""
        return all(isinstance(part.tokens, tuple) for part in self.parts if isinstance(part, Pin | Drop))

    @property
    def grouped(self) -> tuple[Group, ...]:
        """The groups whose tokens are not known yet."""
        named = (part.tokens for part in self.parts if isinstance(part, Pin | Drop))
        return tuple(tokens for tokens in named if isinstance(tokens, Group))

    def with_groups(self, tokens_of: Callable[[Group], Iterable[int]]) -> Edit:
        """The same edit with the groups' tokens as positions."""
        return Edit(
            tuple(
                changed(part, tokens=tuple(tokens_of(part.tokens)))
                if isinstance(part, Pin | Drop) and isinstance(part.tokens, Group)
                else part
                for part in self.parts
            )
        )

    def of_layer(self, layer: int) -> tuple[Part, ...]:
        """The parts that may change this layer's selections."""
        return tuple(part for part in self.parts if part.concerns(layer))

    def on(self, tokens: Sequence[str], geometry: Geometry) -> Edit:
        """The same edit with tokens as positions in a prompt, given as the text of each of its tokens.

        Groups stay as they are (see `with_groups`). Raises InvalidInputError for text that does not occur in the
        prompt, or more than once, a pattern without a match, a position outside the prompt, a layer or head outside the
        model, and parts that contradict each other.
        """
        for part in self.parts:
            _check_inside(part.kind, "layers", part.layers, geometry.n_layers)
            _check_inside(part.kind, "heads", part.heads, geometry.n_kv_heads)
        for one in self.grouped:
            _check_inside("group", "layers", (one.layer,), geometry.n_layers)
            _check_inside("group", "heads", (one.head,), geometry.n_kv_heads)
        return Edit(
            tuple(
                changed(part, tokens=token_positions(part.kind, part.tokens, tokens))
                if isinstance(part, Pin | Drop) and not isinstance(part.tokens, Group)
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
            except (TypeError, UnknownNameError) as error:
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
    rows: Collection[int] | None = None,
) -> Edit:
    """An edit with which these tokens are attended to, whatever the method chooses.

    `tokens`: text that occurs once in the prompt, a compiled regular expression (all matches), a position or positions,
    a slice of them, or a `group`. `heads` are KV heads, `rows` sequences of a batch. With `budget="same"` they displace
    the method's lowest-ranked tokens, and then the oldest of those that it did not rank, but never sinks or the step's
    own token; with "extra" they come on top. An evicted token is kept, a merged one is taken out of its centroid.
    """
    if budget not in ("same", "extra"):
        raise InvalidInputError("pin: budget", repr(budget), "'same' or 'extra'")
    return Edit((Pin(*_numbers("pin", layers, heads, steps, rows), _tokens("pin", tokens), budget),))


def drop(
    tokens: Tokens,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    rows: Collection[int] | None = None,
) -> Edit:
    """An edit with which these tokens, as in `pin`, are not attended to, by full attention either.

    Their places in the budget stay empty. A merged token is taken out of its centroid.
    """
    return Edit((Drop(*_numbers("drop", layers, heads, steps, rows), _tokens("drop", tokens)),))


def exact(
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    by: By = "oracle",
    rows: Collection[int] | None = None,
) -> Edit:
    """An edit with which these KV heads attend exactly.

    By "oracle" to their tokens with the largest exact attention weights, as many as the method attended to; by "full"
    to all tokens.
    """
    if by not in ("oracle", "full"):
        raise InvalidInputError("exact: by", repr(by), "'oracle' or 'full'")
    return Edit((Exact(*_numbers("exact", layers, heads, steps, rows), by),))


def only(
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    rows: Collection[int] | None = None,
) -> Edit:
    """An edit with which the method chooses for these layers and KV heads only; all others attend to all tokens."""
    return Edit((Only(*_numbers("only", layers, heads, steps, rows)),))


def replace(
    stage: str,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    rows: Collection[int] | None = None,
) -> Edit:
    """An edit with which one stage of these KV heads' choice is exact, and all others remain the method's.

    `kvviz.methods.get(name).stages` lists a method's stages, in order. "kept": nothing was evicted or merged.
    "grouping": single tokens are ranked, by the method's score with nothing approximated. "ranking": the method's
    groups, or tokens, are ranked by this score. "trimming": the last group is not cut.
    """
    if stage not in VERDICTS:
        raise UnknownNameError("replace: stage", str(stage), tuple(VERDICTS))
    return Edit((Replace(*_numbers("replace", layers, heads, steps, rows), stage),))


def group(layer: int, head: int, number: int) -> Group:
    """The tokens of one cluster, page or inverted list of one layer and KV head, as `tokens` of `pin` and `drop`.

    `number` is that in recordings (`Recording.groups`) and widgets: of the groups of the prompt. Known for ClusterKV,
    Quest and CTkvr. The method is built once more to find the tokens; `generate` prefills the prompt once more for it.
    """
    for name, value in (("layer", layer), ("head", head), ("number", number)):
        if type(value) is not int or value < 0:
            raise InvalidInputError(f"group: {name}", repr(value), "a whole number from 0")
    return Group(layer, head, number)


MAKERS: Mapping[str, Callable[..., Edit]] = {
    "pin": pin, "drop": drop, "exact": exact, "only": only, "replace": replace,
}  # fmt: skip


def _numbers(
    operation: str,
    layers: Collection[int] | None,
    heads: Collection[int] | None,
    steps: Collection[int] | None,
    rows: Collection[int] | None,
) -> tuple[Numbers | None, Numbers | None, Numbers | None, Numbers | None]:
    return (
        _numbers_of(f"{operation}: layers", layers),
        _numbers_of(f"{operation}: heads", heads),
        _numbers_of(f"{operation}: steps", steps),
        _numbers_of(f"{operation}: rows", rows),
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
    if isinstance(tokens, re.Pattern | slice | Group) or (isinstance(tokens, str) and tokens):
        return tokens
    wanted = "text, a compiled regular expression, a position from 0, positions, a slice, or a group"
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
