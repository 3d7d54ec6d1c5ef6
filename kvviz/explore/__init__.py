"""What widgets compute anew when a slider moves: clusters and selections of a trace, by the production code."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_EXPORTS: dict[str, str] = {
    "Explored": "selections",
    "Explorer": "selections",
    "KeyClusters": "clusters",
    "Parts": "selections",
    "Point": "selections",
    "cluster_keys": "clusters",
    "select": "selections",
}

__all__ = ["Explored", "Explorer", "KeyClusters", "Parts", "Point", "cluster_keys", "select"]

if TYPE_CHECKING:
    from .clusters import KeyClusters, cluster_keys
    from .selections import Explored, Explorer, Parts, Point, select


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    globals()[name] = value
    return value
