"""A method on a trace, for any budget, layer, head and fields that the budget explorer's sliders give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import content, explorer_data

if TYPE_CHECKING:
    from ..generation.explore import Explored, Explorer, Point


class Place(NamedTuple):
    """Where the explorer stands; `settings` are the fields that have sliders."""

    budget: float
    layer: int
    head: int
    settings: Mapping[str, Any]


@dataclass
class Exploration:
    """The selections of `method` on the trace of `explorer`, with the fields `fixed` that have no slider.

    `call` holds what BudgetExplorer was called with beside them.
    """

    explorer: Explorer
    method: str
    fixed: dict[str, Any]
    call: dict[str, Any]

    def explored(self, place: Place) -> Explored:
        """What the method does there; raises what it raises for its fields, and InvalidInputError for a head."""
        explored = self.explorer.select(place.layer, self.method, **self._fields(place))
        content.between("head of a BudgetExplorer", place.head, 0, explored.indices.shape[0] - 1)
        return explored

    def numbers(self, place: Place) -> dict[str, Any]:
        """The numbers shown there, and the Python line that shows them; JSON-able."""
        given = {"method": self.method, "budget": place.budget, "layer": place.layer, "head": place.head}
        given |= self.call | self.fixed | dict(place.settings)
        arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
        explored = self.explored(place)
        point = self.explorer.point(place.layer, explored.method)
        oracle = self.explorer.oracle_point(place.layer, explored.method)
        shown = explorer_data.numbers(explored, point, oracle, place.head)
        call = f"kvviz.widgets.BudgetExplorer(trace, {arguments})"
        return shown | {"settings": dict(place.settings), "layer": place.layer, "head": place.head, "call": call}

    def curve(self, place: Place) -> tuple[Point, Point]:
        """What the method and what the oracle keep there."""
        fields = self._fields(place)
        return (self.explorer.point(place.layer, self.method, **fields),
                self.explorer.oracle_point(place.layer, self.method, **fields))  # fmt: skip

    def _fields(self, place: Place) -> dict[str, Any]:
        return {**self.fixed, **place.settings, "budget": place.budget}
