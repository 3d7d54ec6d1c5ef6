"""InfiniGen's scene: its scores and selection, with what is different for a head alone."""

from __future__ import annotations

from dataclasses import replace

from ...trace.scene import Scene
from ..infinigen import InfiniGen
from .moment import Moment
from .scene_of import scene_of
from .selected import selected_scene

ALONE = "Here the head is alone: in a layer, all heads fetch as many tokens, the mean of their counts."


@scene_of.register
def scene(method: InfiniGen, moment: Moment) -> Scene:
    """The scene of the scores; with a threshold, the number of tokens is that of a head alone."""
    shown = selected_scene(method, moment)
    return shown if method.alpha is None else replace(shown, about=ALONE)
