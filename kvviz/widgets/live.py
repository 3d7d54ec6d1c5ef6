"""anywidget's base class, or an error that says how to install it."""

from __future__ import annotations

from ..errors import MissingDependencyError

try:
    from anywidget import AnyWidget
except ImportError as error:
    raise MissingDependencyError("kvviz.widgets", "anywidget") from error

__all__ = ["AnyWidget"]
