"""What widgets compute anew when a slider moves: clusters and selections of a trace, by the production code.

Widgets import it once they need it: it loads torch.
"""

from __future__ import annotations

from ...methods.sliders import Slider
from .clusters import METRICS, KeyClusters, cluster_keys, cluster_limits, prompt_length
from .selections import Explored, Explorer, Parts, Point, select

__all__ = [
    "METRICS",
    "Explored",
    "Explorer",
    "KeyClusters",
    "Parts",
    "Point",
    "Slider",
    "cluster_keys",
    "cluster_limits",
    "prompt_length",
    "select",
]
