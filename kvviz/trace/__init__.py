"""Trace (captured tensors), Recording (decode steps) and Timeline: the interface between computation and display.

NumPy and versioned safetensors only; it imports the errors and `kvviz.metrics`.
"""

from .captured import Trace
from .events import LayerEvents
from .geometry import Geometry
from .ledger import Ledger
from .recording import Recording
from .timeline import Timeline

__all__ = ["Geometry", "LayerEvents", "Ledger", "Recording", "Timeline", "Trace"]
