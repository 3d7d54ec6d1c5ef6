"""Trace (captured tensors) and Recording (decode events): the seam between what computes and what draws."""

from ..geometry import Geometry
from .captured import Trace
from .events import LayerEvents
from .recording import Recording

__all__ = ["Geometry", "LayerEvents", "Recording", "Trace"]
