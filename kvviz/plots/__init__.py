"""Figures: pure functions, data in, `plotly.graph_objects.Figure` out; nothing is shown and no model is loaded.

Importing this package registers the plotly templates "kvviz_light" and "kvviz_dark". Every figure takes `dark=True`.
"""

from __future__ import annotations

from .export import save
from .recall import recall_by_budget
from .selection import selection_map
from .semantic import semantic_space
from .theme import cluster_color, cluster_hue, method_style, register

register()

__all__ = [
    "cluster_color",
    "cluster_hue",
    "method_style",
    "recall_by_budget",
    "save",
    "selection_map",
    "semantic_space",
]
