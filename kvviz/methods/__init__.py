"""Methods, one file per method. To add one, add a file here, or an entry point `kvviz.methods` in another package."""

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
from .wrapper import Wrapper

__all__ = [
    "Eviction", "LayerContext", "Method", "ScoringMethod", "Selection", "Slider", "State", "Style", "Wrapper", "create",
    "get", "names", "resolve", "resolve_prefill", "table",
]  # fmt: skip


def names() -> tuple[str, ...]:
    """Sorted names of all methods."""
    return REGISTRY.names()


def get(name: str) -> type[Method]:
    """The method class with this name. Raises UnknownNameError, which suggests similar names."""
    return REGISTRY.find(name)


def create(name: str, *, preset: str = "paper", over: str | Method | None = None, **values: Any) -> Method:
    """A method by name. The preset overrides the defaults, and `values` override the preset.

    `over` is the method that a wrapper changes: `create("twilight", over="quest", budget=512)`, for short
    `create("twilight(quest)", budget=512)`. It is a name or an instance, whose fields `values` override; the fields of
    both methods may be among them (`Wrapper`).

    Raises UnknownNameError for an unknown method, preset or field, and InvalidInputError for a value out of range or a
    method that the wrapper cannot wrap.
    """
    if isinstance(over, Method):
        values = over.config | values
    if over is not None:
        name = f"{name}({over if isinstance(over, str) else over.name})"
    presets = get(name).presets
    if preset not in presets:
        raise UnknownNameError(f"{name}: preset", preset, presets)
    return REGISTRY.create(name, **{**presets[preset], **values})


def resolve(method: str | Method, **values: Any) -> Method:
    """The method with this name and these fields, or `method` itself if it is an instance."""
    if isinstance(method, str):
        return create(method, **values)
    if values:
        raise InvalidInputError(
            "method",
            f"an instance of {method.name} with fields {sorted(values)}",
            "a name with fields, or an instance without fields",
        )
    return method


def resolve_prefill(prefill: str | Method) -> Method:
    """A method with sparse attention over prompts. Raises InvalidInputError for a method whose prefill is exact."""
    method = resolve(prefill)
    if not isinstance(method, SparsePrefill):
        sparse = [name for name in names() if issubclass(get(name), SparsePrefill)]
        raise InvalidInputError("prefill", method.name, f"a method with sparse prefill: {', '.join(sparse)}")
    return method


def table() -> str:
    """A Markdown table of all methods: name, title, kind, paper, presets."""
    return REGISTRY.table(
        {
            "method": lambda method: method.title,
            "kind": lambda method: method.kind,
            "paper": lambda method: method.paper,
            "presets": lambda method: ", ".join(method.presets),
        }
    )
