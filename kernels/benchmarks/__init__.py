"""Kernels against what a user would take instead, one module a family of kernels.

Each offers check(device), which asserts that the implementations give the same answers, rows(device), which times them,
and where there is something to tune tune(device), which writes the best launch configurations for the GPU at hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def benchmarks() -> dict[str, ModuleType]:
    """Every benchmark by its name."""
    return {found.name: importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)}
