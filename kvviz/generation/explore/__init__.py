"""Computations of the widgets, repeated when a slider moves: clusters and selections of a trace, by production code.

Widgets import this room only when they need it, because it loads torch.
"""

from __future__ import annotations

from ...methods.base import Method as Method  # for widgets, which see no methods
from ...methods.sliders import Slider as Slider  # likewise
from .clusters import METRICS, cluster_keys, cluster_limits
from .explorer_sliders import sliders_of
from .group_views import VIEWS as VIEWS  # for widgets; the reference has no use for a dictionary's docstring
from .group_views import group_keys, prompt_length, ranked_steps, view_method, view_of
from .key_groups import KeyGroups
from .mechanism import Mechanism
from .retries import retry
from .selections import Explored, Explorer, Parts, Point, select

__all__ = [
    "METRICS",
    "Explored",
    "Explorer",
    "KeyGroups",
    "Mechanism",
    "Parts",
    "Point",
    "cluster_keys",
    "cluster_limits",
    "group_keys",
    "prompt_length",
    "ranked_steps",
    "retry",
    "select",
    "sliders_of",
    "view_method",
    "view_of",
]
