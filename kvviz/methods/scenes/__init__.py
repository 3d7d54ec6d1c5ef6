"""Scenes of methods: how each of them comes to the tokens that a step attends to, from its own state and functions.

One file per method that has a mechanism to show; each registers its scene with `scene_of`, and all of them are imported
here.
"""

import importlib
import pkgutil

from .moment import Moment
from .scene_of import scene_of

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Moment", "scene_of"]
