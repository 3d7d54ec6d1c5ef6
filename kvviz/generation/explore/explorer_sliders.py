"""The sliders that the budget explorer shows for a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ...errors import UnknownNameError
from ...methods.base import Method
from ...methods.sliders import Slider

SHOWN = 2


def sliders_of(method: Method, head_dim: int) -> list[Slider]:
    """At most two sliders of a method, the main one first: those that its class declares, or else those of its fields.

    A field that is None has no slider. Raises UnknownNameError for a slider of a field that the method does not have.
    """
    config = method.config
    declared = derived(method) if method.sliders is None else method.sliders
    for name in [name for slider in declared for name in (slider.name, slider.unless) if name]:
        if name not in config:
            raise UnknownNameError(f"{method.name}: field of a slider", name, config)
    return [
        slider.of(config, head_dim)
        for slider in declared
        if config[slider.name] is not None and (not slider.unless or config[slider.unless] is None)
    ][:SHOWN]


def derived(method: Method) -> list[Slider]:
    """A slider for each numeric field that the method adds, with the values that the method accepts."""
    shared = {field.name for field in dataclasses.fields(Method)}
    sliders = []
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        if field.name in shared or field.name == "seed" or not numeric:
            continue
        values = tuple(stop for stop in sorted(set(_around(value))) if _accepts(method, field.name, stop))
        if len(values) > 1:
            default = "" if field.default is dataclasses.MISSING else f", {field.default} by default"
            meaning = f"a field of {method.title}{default}"
            sliders.append(Slider(field.name, field.name.replace("_", " "), values, meaning))
    return sliders


def _around(value: float) -> Iterator[float]:
    """A quarter, half, once, twice and four times the value: an int if it is one, and at most 1 for a share."""
    for factor in (0.25, 0.5, 1, 2, 4):
        if isinstance(value, int):
            yield max(int(value * factor), 1)
        elif not 0 < value <= 1 or value * factor <= 1:
            yield value * factor


def _accepts(method: Method, name: str, value: float) -> bool:
    changes: dict[str, Any] = {name: value}
    try:
        dataclasses.replace(method, **changes)
    except ValueError:  # InvalidInputError is one; a method of another package may raise a different one
        return False
    return True
