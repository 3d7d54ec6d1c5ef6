"""Widgets for recordings: `DecodeStepper`, built on `TokenStrip` and `CanvasMatrix`. They load on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "BudgetExplorer": "budget_explorer",
    "CanvasMatrix": "canvas_matrix",
    "ClusterInspector": "cluster_inspector",
    "DecodeStepper": "decode_stepper",
    "MethodComparer": "method_comparer",
    "TokenStrip": "token_strip",
}

__all__ = ["BudgetExplorer", "CanvasMatrix", "ClusterInspector", "DecodeStepper", "MethodComparer", "TokenStrip"]

if TYPE_CHECKING:
    from .budget_explorer import BudgetExplorer
    from .canvas_matrix import CanvasMatrix
    from .cluster_inspector import ClusterInspector
    from .decode_stepper import DecodeStepper
    from .method_comparer import MethodComparer
    from .token_strip import TokenStrip


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
