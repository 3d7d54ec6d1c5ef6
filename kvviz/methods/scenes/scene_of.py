"""`scene_of`, which finds the scene of a method by its class."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from ...trace.scene import Scene
from ..base import Method
from .moment import Moment
from .selected import selected_scene


@singledispatch
def scene_of(method: Method[Any], moment: Moment) -> Scene:
    """How a method comes to the tokens of a step, frame by frame.

    A file of this folder registers the scene of a method and its subclasses. A method of another package may define
    `scene(self, moment)` instead. All others show the scores of their `ranking` and the tokens of the selection.
    """
    own = getattr(method, "scene", None)
    return selected_scene(method, moment) if own is None else own(moment)
