"""Selections of a method on a trace, for any budget, layer, head and fields that the budget explorer asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import content, explorer_data, unions, view
from .explorer_data import Array, CurvePoint

if TYPE_CHECKING:
    from ..generation.explore import Explored, Explorer


class Place(NamedTuple):
    """The budget, layer, head or union and settings shown; `settings` are the fields that have sliders."""

    budget: float
    layer: int
    head: int
    settings: Mapping[str, Any]
    union: str = unions.NONE


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
        """The selection at `place`; raises the method's errors for its fields, InvalidInputError for a head.

        Raises UnknownNameError for a union that the method does not have.
        """
        explored = self.explorer.select(place.layer, self.method, **self._fields(place))
        content.between("head of a BudgetExplorer", place.head, 0, explored.indices.shape[0] - 1)
        unions.check("BudgetExplorer", unions.offered([explored.recording]), place.union)
        return explored

    def numbers(self, place: Place) -> dict[str, Any]:
        """The numbers at `place`, and the Python line that shows them; JSON-able."""
        values = {"method": self.method, "budget": place.budget, "layer": place.layer, "head": place.head}
        values |= {} if place.union == unions.NONE else {"union": place.union}
        values |= self.call | self.fixed | dict(place.settings)
        arguments = ", ".join(f"{name}={value!r}" for name, value in values.items())
        explored = self.explored(place)
        point = self.explorer.point(place.layer, explored.method)
        oracle = self.explorer.oracle_point(place.layer, explored.method)
        shown = explorer_data.numbers(explored, point, oracle, self.rows(place))
        call = f"kvviz.widgets.BudgetExplorer(trace, {arguments})"
        where = {"layer": place.layer, "head": place.head, "union": place.union}
        return shown | where | {"settings": dict(place.settings), "call": call}

    def curve(self, place: Place) -> tuple[CurvePoint, CurvePoint]:
        """The points of the method and of the oracle at `place`, for their curves."""
        fields = self._fields(place)
        points = (self.explorer.point(place.layer, self.method, **fields),
                  self.explorer.oracle_point(place.layer, self.method, **fields))  # fmt: skip
        rows = self._rows(place, len(points[0].recall))
        return explorer_data.curve_point(points[0], rows), explorer_data.curve_point(points[1], rows)

    def rows(self, place: Place) -> range:
        """The rows of the selection that are shown: that of a head, or those of its union."""
        return self._rows(place, len(self.explored(place).indices))

    def arrays(self, place: Place) -> dict[str, Array]:
        """The tokens at `place`, as js/slice.js reads them."""
        return explorer_data.arrays(self.explored(place), self.rows(place), place.union)

    def packed(self, place: Place) -> bytes:
        """`arrays` as the bytes of a safetensors file."""
        return view.pack(self.arrays(place), place.layer, place.head)

    def _rows(self, place: Place, count: int) -> range:
        return unions.joined(place.head, place.union, count, self.explorer.trace.geometry.n_kv_heads)

    def _fields(self, place: Place) -> dict[str, Any]:
        return {**self.fixed, **place.settings, "budget": place.budget}
