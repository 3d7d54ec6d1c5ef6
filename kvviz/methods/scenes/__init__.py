"""Scenes of methods: how each of them comes to the tokens that a step attends to, from its own state and functions."""

from .moment import Moment
from .selected import chosen_frame, selected_scene

__all__ = ["Moment", "chosen_frame", "selected_scene"]
