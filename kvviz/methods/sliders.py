"""Sliders: fields of a method worth moving in the budget explorer, and the values at which they stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Slider:
    """A field of a method, the values that its slider stops at, and what the field means.

    `unless` names a field that takes this one's place where it is set (clusters, instead of tokens per cluster). With
    `divides_head_dim` only those values stay that cut a key into equal parts.
    """

    name: str
    label: str
    values: tuple[Any, ...]
    meaning: str
    unless: str = ""
    divides_head_dim: bool = False

    def of(self, config: Mapping[str, Any], head_dim: int) -> Slider:
        """The slider of a method with this configuration: with a stop at its present value too."""
        values = sorted({*self.values, config[self.name]})
        if self.divides_head_dim:
            values = [value for value in values if head_dim % value == 0]
        return replace(self, values=tuple(values))

    def described(self) -> dict[str, Any]:
        """What a page shows of the slider, as JSON-able data."""
        return {"name": self.name, "label": self.label, "values": list(self.values), "meaning": self.meaning}
