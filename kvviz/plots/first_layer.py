"""The layer that a figure shows if none is named: the first one that was captured or recorded, which need not be 0."""

from __future__ import annotations

from ..errors import InvalidInputError
from ..trace import Recording, Trace


def layer_or_first(operation: str, layer: int | None, *sources: Trace | Recording) -> int:
    """`layer`, or the first one that all of the sources have. Raises InvalidInputError if they have none in common."""
    if layer is not None:
        return layer
    common = set(sources[0].layers).intersection(*(source.layers for source in sources))
    if not common:
        wanted = "a layer that was captured or recorded in all of them"
        raise InvalidInputError(f"{operation}: layer", f"layers {[list(source.layers) for source in sources]}", wanted)
    return min(common)
