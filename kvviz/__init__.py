"""See, understand, compare and use KV-cache retrieval and compression for long-context language models.

Everything here loads on first use: `import kvviz` itself loads neither torch, transformers, plotly nor ipywidgets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "CacheMismatchError": "errors",
    "Generation": "generation",
    "Geometry": "trace",
    "IncompatibleFileError": "errors",
    "InvalidInputError": "errors",
    "KVVizError": "errors",
    "LanguageModel": "models",
    "Method": "methods",
    "MissingDependencyError": "errors",
    "Recording": "trace",
    "Selection": "selection",
    "SelectiveCache": "hf",
    "Trace": "trace",
    "UnknownNameError": "errors",
    "UnsupportedModelError": "errors",
    "attach": "hf",
    "capture": "capture",
    "compare": "generation",
    "detach": "hf",
    "generate": "generation",
    "load": "models",
    "replay": "generation",
}
_MODULES = ("attention", "capture", "clustering", "errors", "generation", "hf", "kernels", "methods", "metrics", "models",
            "offload", "plots", "selection", "trace", "widgets")  # fmt: skip

__all__ = [*sorted(_EXPORTS), "__version__", "clustering", "kernels", "methods", "metrics", "plots", "widgets"]

if TYPE_CHECKING:
    from . import clustering, kernels, methods, metrics, plots, widgets
    from .capture import capture
    from .errors import (
        CacheMismatchError,
        IncompatibleFileError,
        InvalidInputError,
        KVVizError,
        MissingDependencyError,
        UnknownNameError,
        UnsupportedModelError,
    )
    from .generation import Generation, compare, generate, replay
    from .hf import SelectiveCache, attach, detach
    from .methods import Method
    from .models import LanguageModel, load
    from .selection import Selection
    from .trace import Geometry, Recording, Trace


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
