"""Dataclass fields of methods with a range of allowed values, which is checked when a method is created."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import field, fields
from typing import Any, TypeVar

from ..errors import InvalidInputError, UnknownNameError

T = TypeVar("T")


def whole(default: T, least: int, most: float = math.inf) -> T:
    """A field for an int from `least` to `most`, or None if its annotation allows it."""
    return _ranged(
        default, int, least, most, f"an int >= {least}" if most == math.inf else f"an int from {least} to {most}"
    )


def number(default: T, least: float, most: float = math.inf) -> T:
    """A field for an int or a float from `least` to `most`, or None if its annotation allows it."""
    return _ranged(default, int | float, least, most, f"a number from {least} to {most}")


def one_of(default: T, choices: Collection[str]) -> T:
    """A field for one of the choices, or None if its annotation allows it."""

    def check(operation: str, value: object) -> None:
        if value not in choices:
            raise UnknownNameError(operation, str(value), choices)

    return field(default=default, metadata={"check": check})


def check_fields(method: Any) -> None:
    """Raise InvalidInputError or UnknownNameError for the first field whose value is not allowed.

    If a subclass only changes a field's default, the allowed values stay the same.
    """
    for declared_field in fields(method):
        name, value = declared_field.name, getattr(method, declared_field.name)
        if value is None and "None" in str(declared_field.type):
            continue
        declared = (vars(cls).get("__dataclass_fields__", {}).get(name) for cls in type(method).__mro__)
        checks = (entry.metadata["check"] for entry in declared if entry is not None and "check" in entry.metadata)
        check: Callable[[str, object], None] | None = next(checks, None)
        if check is not None:
            check(f"{method.name}: {name}", value)


def _ranged(default: T, kind: Any, least: float, most: float, wanted: str) -> T:
    def check(operation: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
            raise InvalidInputError(operation, repr(value), wanted)

    return field(default=default, metadata={"check": check})
