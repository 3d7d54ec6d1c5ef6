"""Computations of the widgets, repeated when a slider moves: clusters and selections of a trace, by production code.

Widgets import this room only when they need it, because it loads torch.
"""

from __future__ import annotations

from ...methods.sliders import Slider as Slider  # for widgets, which see no methods
from .clusters import METRICS, KeyClusters, cluster_keys, cluster_limits, prompt_length
from .retries import retry
from .selections import Explored, Explorer, Parts, Point, select

__all__ = [
    "METRICS",
    "Explored",
    "Explorer",
    "KeyClusters",
    "Parts",
    "Point",
    "cluster_keys",
    "cluster_limits",
    "prompt_length",
    "retry",
    "select",
]
