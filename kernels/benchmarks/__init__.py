"""Benchmarks of kernels against what a user would use instead, one module per family of kernels.

Each module has check(device), which asserts that all implementations give the same results, rows(device), which times
them, and, if there is something to tune, tune(device), which writes the best launch configurations for this GPU.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def benchmarks() -> dict[str, ModuleType]:
    """All benchmarks by name."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
