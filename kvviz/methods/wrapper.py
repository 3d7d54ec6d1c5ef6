"""`Wrapper`, the base class of methods that change another method: its choice, its budget per head, or its storage."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ..errors import InvalidInputError
from ..trace.styles import Style
from .base import REGISTRY, Method


@dataclass
class Wrapper(Method[Any]):
    """A method over another one: `create("twilight", over="quest")`, or for short `create("twilight(quest)")`.

    One rule holds for all wrappers: a wrapped method is a subclass of both, the wrapper first. What the wrapper defines
    uses `super()` to reach the other method, and all else is the other method's: its kind, its stages, its groups, what
    it builds. The fields of both are fields of the whole, and share one budget: `create("twilight(quest)", budget=512,
    p=0.9, page_size=32)`. Wrappers nest: "kivi(twilight(quest))".

    Over full attention, a wrapper has its own title and colour: it is then what it is alone.

    A subclass sets `wraps`, the name of the method that it wraps by default, and `check_wrapped`. It may add tensors to
    a state: see `State.extras`.
    """

    wraps: ClassVar[str]

    @classmethod
    @abstractmethod
    def check_wrapped(cls, method: type[Method]) -> None:
        """Raise InvalidInputError, which names this class, if it cannot wrap the method."""

    @classmethod
    def over(cls, method: type[Method]) -> type[Self]:
        """The class of this wrapper over `method`, always the same one. Raises InvalidInputError if that is impossible.

        A preset of either class is one of the whole, together with the other's settings of the same name, or else of
        the other's paper.
        """
        known: type[Self] | None = _composed.get((cls, method))
        if known is not None:
            return known
        if issubclass(method, cls):
            raise InvalidInputError(f"{cls.name} over {method.name}", cls.name + " twice", "each wrapper once")
        cls.check_wrapped(method)
        alone = method.name == "full"
        body: dict[str, Any] = {
            "__module__": cls.__module__,
            "__doc__": f"{cls.title} over {method.title}.\n{_documented(cls)}{_documented(method)}",
            "__reduce__": _reduce,
            "name": f"{cls.name}({method.name})",
            "title": cls.title if alone else f"{cls.title} over {method.title}",
            "paper": cls.paper,
            "style": cls.style if alone else dataclasses.replace(Style(), color=method.style.color),
            "presets": _presets(cls, method),
            "expected_failures": {**method.expected_failures, **cls.expected_failures},
            "builds_for_any_budget": cls.builds_for_any_budget and method.builds_for_any_budget,
        }
        own = vars(cls).get("__annotations__", {})
        fields = [field for field in dataclasses.fields(method) if field.name not in own]
        # Without this the wrapper's copy of a field of `Method` would bring back the default that `method` replaced.
        body |= {field.name: dataclasses.field(default=field.default, metadata=field.metadata) for field in fields}
        body["__annotations__"] = {field.name: field.type for field in fields}
        composed: type[Self] = dataclass(type(f"{cls.__name__}Over{method.__name__}", (cls, method), body))
        _composed[cls, method] = composed
        return composed


_composed: dict[tuple[type[Wrapper], type[Method]], Any] = {}


def _documented(method: type[Method]) -> str:
    return f"\n    {method.title}: {(method.__doc__ or '').rstrip()}\n"


def _presets(wrapper: type[Wrapper], method: type[Method]) -> dict[str, Mapping[str, Any]]:
    names = dict.fromkeys([*method.presets, *wrapper.presets])
    return {name: {**_preset(method, name), **_preset(wrapper, name)} for name in names}


def _preset(method: type[Method], name: str) -> Mapping[str, Any]:
    return method.presets.get(name, method.presets.get("paper", {}))


def _reduce(self: Wrapper) -> tuple[Any, ...]:
    """How to copy it to another process, which has no class of this name until it is asked for one."""
    return _made, (self.name, self.config)


def _made(name: str, config: dict[str, Any]) -> Method:
    return REGISTRY.create(name, **config)
