"""See, understand, compare and use KV-cache retrieval and compression for long-context language models.

Everything here loads on first use: `import kvviz` itself loads neither torch, transformers, plotly nor ipywidgets.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "CacheMismatchError": "errors",
    "DamagedOffloadError": "errors",
    "Generation": "generation",
    "Geometry": "trace",
    "IncompatibleFileError": "errors",
    "InvalidInputError": "errors",
    "KVVizError": "errors",
    "LanguageModel": "models",
    "Method": "methods",
    "MissingDependencyError": "errors",
    "OutOfSpaceError": "errors",
    "Recording": "trace",
    "Selection": "selection",
    "SelectiveCache": "hf",
    "Timeline": "timeline",
    "Trace": "trace",
    "UnknownNameError": "errors",
    "UnsupportedModelError": "errors",
    "attach": "hf",
    "capture": "capture",
    "compare": "compare",
    "detach": "hf",
    "evaluate": "evaluation",
    "generate": "generation",
    "load": "models",
    "load_results": "evaluation",
    "open_runs": "runs",
    "replay": "replay",
}
_MODULES = (
    "attention",
    "capture",
    "clustering",
    "errors",
    "evaluation",
    "generation",
    "hf",
    "kernels",
    "methods",
    "metrics",
    "models",
    "offload",
    "operations",
    "plots",
    "runs",
    "selection",
    "tasks",
    "timeline",
    "trace",
    "widgets",
)

__all__ = [*sorted(_EXPORTS), "__version__", "clustering", "kernels", "methods", "metrics", "plots", "widgets"]

if TYPE_CHECKING:
    from . import clustering, kernels, methods, metrics, plots, widgets
    from .capture import capture
    from .compare import compare
    from .errors import (
        CacheMismatchError,
        DamagedOffloadError,
        IncompatibleFileError,
        InvalidInputError,
        KVVizError,
        MissingDependencyError,
        OutOfSpaceError,
        UnknownNameError,
        UnsupportedModelError,
    )
    from .evaluation import evaluate, load_results
    from .generation import Generation, generate
    from .hf import SelectiveCache, attach, detach
    from .methods import Method
    from .models import LanguageModel, load
    from .replay import replay
    from .runs import open_runs
    from .selection import Selection
    from .timeline import Timeline
    from .trace import Geometry, Recording, Trace


class _Package(ModuleType):
    """Keeps the import of the module kvviz.capture from hiding the function kvviz.capture, and likewise the others."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _EXPORTS and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        value = getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
