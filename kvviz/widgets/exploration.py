"""Selections of a method on a trace, for any budget, layer, head and fields that the budget explorer asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import content, explorer_data

if TYPE_CHECKING:
    from ..generation.explore import Explored, Explorer, Point


class Place(NamedTuple):
    """The budget, layer, head and settings shown; `settings` are the fields that have sliders."""

    budget: float
    layer: int
    head: int
    settings: Mapping[str, Any]


@dataclass
class Exploration:
    """Selections of `method` on the trace of `explorer`; `fixed` are its fields without a slider.

    `call` holds the other arguments of BudgetExplorer.
    """

    explorer: Explorer
    method: str
    fixed: dict[str, Any]
    call: dict[str, Any]

    def explored(self, place: Place) -> Explored:
        """The selection at `place`; raises the method's errors for its fields, InvalidInputError for a head."""
        explored = self.explorer.select(place.layer, self.method, **self._fields(place))
        content.between("head of a BudgetExplorer", place.head, 0, explored.indices.shape[0] - 1)
        return explored

    def numbers(self, place: Place) -> dict[str, Any]:
        """The numbers at `place`, and the Python line that shows them; JSON-able."""
        values = {"method": self.method, "budget": place.budget, "layer": place.layer, "head": place.head}
        values |= self.call | self.fixed | dict(place.settings)
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
        explored = self.explored(place)
        point = self.explorer.point(place.layer, explored.method)
        oracle = self.explorer.oracle_point(place.layer, explored.method)
        shown = explorer_data.numbers(explored, point, oracle, place.head)
        call = f"kvviz.widgets.BudgetExplorer(trace, {arguments})"
        return shown | {"settings": dict(place.settings), "layer": place.layer, "head": place.head, "call": call}

    def curve(self, place: Place) -> tuple[Point, Point]:
        """The points of the method and of the oracle at `place`, for their curves."""
        fields = self._fields(place)
        return (self.explorer.point(place.layer, self.method, **fields),
                self.explorer.oracle_point(place.layer, self.method, **fields))  # fmt: skip

    def _fields(self, place: Place) -> dict[str, Any]:
        return {**self.fixed, **place.settings, "budget": place.budget}
