"""Scenes of methods: how each of them comes to the tokens that a step attends to, from its own state and functions.

One file per method that has a mechanism to show; each registers its scene with `scene_of`.
"""

from . import centroidkv, clusterkv, ctkvr, infinigen, pqcache, quest
from .moment import Moment
from .scene_of import scene_of

__all__ = ["Moment", "centroidkv", "clusterkv", "ctkvr", "infinigen", "pqcache", "quest", "scene_of"]
