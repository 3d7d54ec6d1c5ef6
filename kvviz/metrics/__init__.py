"""Metrics of selections and of attention: NumPy in, NumPy out. It imports NumPy only, and SciPy when a fit needs it."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
