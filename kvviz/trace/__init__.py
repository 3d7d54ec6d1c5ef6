"""Trace (captured tensors), Recording (decode events) and Timeline: the seam between what computes and what draws.

NumPy and versioned safetensors only; it imports the errors and `kvviz.metrics`.
"""

from .captured import Trace
from .events import LayerEvents
from .geometry import Geometry
from .ledger import Ledger
from .recording import Recording
from .timeline import Timeline

__all__ = ["Geometry", "LayerEvents", "Ledger", "Recording", "Timeline", "Trace"]
