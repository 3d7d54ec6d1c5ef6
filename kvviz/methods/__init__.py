"""Methods: one file each. A new file here, or an entry point `kvviz.methods` elsewhere, is all a new one needs."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInputError, UnknownNameError
from ..trace.styles import Style
from .base import REGISTRY, LayerContext, Method, State
from .capabilities import SparsePrefill
from .eviction import Eviction
from .scoring import ScoringMethod
from .selection import Selection
from .sliders import Slider

__all__ = [
    "Eviction", "LayerContext", "Method", "ScoringMethod", "Selection", "Slider", "State", "Style", "create", "get",
    "names", "resolve", "resolve_prefill", "table",
]  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of all methods found, sorted."""
    return REGISTRY.names()


def get(name: str) -> type[Method]:
    """The method class of that name; raises UnknownNameError with near matches."""
    return REGISTRY.find(name)


def create(name: str, *, preset: str = "paper", **values: Any) -> Method:
    """A method by name: its defaults, changed by the preset, changed by the fields given.

    Raises UnknownNameError for an unknown method, preset or field, InvalidInputError for a value out of range.
    """
    presets = get(name).presets
    if preset not in presets:
        raise UnknownNameError(f"{name}: preset", preset, presets)
    return REGISTRY.create(name, **{**presets[preset], **values})


def resolve(method: str | Method, **values: Any) -> Method:
    """A method from its name and fields, or the method itself where it already is one."""
    if isinstance(method, str):
        return create(method, **values)
    if values:
        raise InvalidInputError(
            "method",
            f"an instance of {method.name} with fields {sorted(values)}",
            "a name with fields, or an instance alone",
        )
    return method


def resolve_prefill(prefill: str | Method) -> Method:
    """A method whose attention prompts can use; raises InvalidInputError for one that leaves prompts exact."""
    method = resolve(prefill)
    if not isinstance(method, SparsePrefill):
        sparse = [name for name in names() if issubclass(get(name), SparsePrefill)]
        raise InvalidInputError("prefill", method.name, f"a method that attends prompts sparsely: {', '.join(sparse)}")
    return method


def table() -> str:
    """A Markdown table of all methods: name, what it is, kind, paper, presets."""
    return REGISTRY.table(
        {
            "method": lambda method: method.title,
            "kind": lambda method: method.kind,
            "paper": lambda method: method.paper,
            "presets": lambda method: ", ".join(method.presets),
        }
    )
