"""Dataclass fields of methods with a range of allowed values, which is checked when a method is created."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import field, fields
from typing import Any, TypeVar

from ..errors import InvalidInputError, UnknownNameError
from ..metrics.byte_budgets import Bytes

T = TypeVar("T")


def whole(default: T, least: int, most: float = math.inf) -> T:
    """A field for an int from `least` to `most`, or None if its annotation allows it."""
    wanted = f"an int >= {least}" if most == math.inf else f"an int from {least} to {most}"
    return checked(default, int, lambda value: least <= value <= most, wanted)


def number(default: T, least: float, most: float = math.inf) -> T:
    """A field for an int or a float from `least` to `most`, or None if its annotation allows it."""
    return checked(default, int | float, lambda value: least <= value <= most, f"a number from {least} to {most}")


def checked(default: T, kind: Any, allows: Callable[[Any], bool], wanted: str) -> T:
    """A field for a value of this type that `allows` accepts, or None if its annotation allows it; a bool is no number.

    `wanted` describes the allowed values in the error.
    """

    def check(operation: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, kind) or not allows(value):
            raise InvalidInputError(operation, repr(value), wanted)

    return field(default=default, metadata={"check": check})


def one_of(default: T, choices: Collection[str]) -> T:
    """A field for one of the choices, or None if its annotation allows it."""

    def check(operation: str, value: object) -> None:
        if value not in choices:
            raise UnknownNameError(operation, str(value), choices)

    return field(default=default, metadata={"check": check})


def check_budget(operation: str, budget: object) -> None:
    """Raise InvalidInputError for a budget that no method accepts."""
    fits = 0 < budget < 1 if isinstance(budget, float) else isinstance(budget, int) and budget >= 1
    if isinstance(budget, bool) or not (fits or isinstance(budget, Bytes)):
        wanted = "tokens, an int >= 1, a share of the prompt in (0, 1), or kvviz.bytes(...)"
        raise InvalidInputError(operation, repr(budget), wanted)


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
