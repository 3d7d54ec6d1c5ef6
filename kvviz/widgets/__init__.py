"""Widgets for recordings: `DecodeStepper`, built on `TokenStrip` and `CanvasMatrix`. They load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS = {"CanvasMatrix": "canvas_matrix", "DecodeStepper": "decode_stepper", "TokenStrip": "token_strip"}

__all__ = ["CanvasMatrix", "DecodeStepper", "TokenStrip"]

if TYPE_CHECKING:
    from .canvas_matrix import CanvasMatrix
    from .decode_stepper import DecodeStepper
    from .token_strip import TokenStrip


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
