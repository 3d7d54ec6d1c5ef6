"""The parts of an edit: what changes, in which layers, KV heads and decode steps, and which contradict each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from ..errors import InvalidInputError


@dataclass(frozen=True)
class Group:
    """The tokens of one cluster, page or list of one layer and KV head; see `kvviz.group`."""

    layer: int
    head: int
    number: int


Named = str | re.Pattern[str] | int | slice | Iterable[int]
Tokens = Named | Group
Budget = Literal["same", "extra"]
By = Literal["oracle", "full"]
Numbers = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """One change, in some layers, KV heads, decode steps and rows of a batch; None means all.

    All count from 0, steps from the question's first one.
    """

    kind: ClassVar[str]

    layers: Numbers | None = None
    heads: Numbers | None = None
    steps: Numbers | None = None
    rows: Numbers | None = None

    def concerns(self, layer: int) -> bool:
        """Whether this may change the layer's selections."""
        return self.layers is None or layer in self.layers

    def overlaps(self, other: Part) -> bool:
        """Whether a layer, head, step and row has both."""
        places = [(part.layers, part.heads, part.steps, part.rows) for part in (self, other)]
        return all(one is None or two is None or set(one) & set(two) for one, two in zip(*places, strict=True))


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
class Replace(Part):
    """One stage of these heads' choice is exact; see `replace`."""

    kind = "replace"

    stage: str = ""


def check_together(one: Part, two: Part) -> None:
    """Raise InvalidInputError if two parts that overlap contradict each other."""
    kinds = {one.kind, two.kind}
    if kinds == {"pin", "drop"}:
        both = _positions(one) & _positions(two)
        if both:
            got = f"position {min(both)} pinned and dropped in the same layer, head and step"
            raise InvalidInputError("edit", got, "one of the two")
    if kinds == {"exact"} and isinstance(one, Exact) and isinstance(two, Exact) and one.by != two.by:
        raise InvalidInputError("edit", "heads that are exact by both 'oracle' and 'full'", "one of the two")
    if "replace" in kinds and kinds <= {"replace", "exact"}:
        if isinstance(one, Replace) and isinstance(two, Replace) and one.stage == two.stage:
            return
        other = "'exact' in the heads of 'replace'" if "exact" in kinds else "two stages replaced in the same heads"
        raise InvalidInputError("edit", other, "one of the two")
    if "only" in kinds and kinds <= {"only", "exact"}:
        other = "'exact' in the heads of 'only'" if "exact" in kinds else "'only' twice in the same heads"
        raise InvalidInputError("edit", other, "'only' for the heads in which the method chooses, 'exact' for others")


def _positions(part: Part) -> set[int]:
    tokens = part.tokens if isinstance(part, Pin | Drop) else ()
    return set(tokens) if isinstance(tokens, tuple) else set()
