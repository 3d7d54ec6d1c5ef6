"""Sliders of the budget explorer: fields of a method, and the values that each slider offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Slider:
    """A slider: a field of a method, the values that the slider offers, and the meaning of the field.

    `unless` names a field that replaces this one when it is set (clusters instead of tokens per cluster). With
    `divides_head_dim`, only values that divide the head dimension are offered.
    """

    name: str
    label: str
    values: tuple[Any, ...]
    meaning: str
    unless: str = ""
    divides_head_dim: bool = False

    def of(self, config: Mapping[str, Any], head_dim: int) -> Slider:
        """The slider for a method with this configuration; its values include the current one."""
        values = sorted({*self.values, config[self.name]})
        if self.divides_head_dim:
            values = [value for value in values if head_dim % value == 0]
        return replace(self, values=tuple(values))

    def described(self) -> dict[str, Any]:
        """The slider as JSON-serialisable data for a page."""
        return {"name": self.name, "label": self.label, "values": list(self.values), "meaning": self.meaning}
