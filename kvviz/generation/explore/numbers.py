"""A check that the numbers of a trace are finite."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidInputError
from ...trace import Trace


def check_finite(operation: str, trace: Trace, layer: int, kv_heads: slice = slice(None)) -> None:
    """Raise InvalidInputError if queries, keys or values of these KV heads of a layer contain NaN or infinity."""
    group = trace.geometry.n_heads // trace.geometry.n_kv_heads
    heads = range(trace.geometry.n_kv_heads)[kv_heads]
    rows = slice(heads.start * group, heads.stop * group)
    for name, selected in (("queries", rows), ("keys", kv_heads), ("values", kv_heads)):
        finite = np.isfinite(getattr(trace, name)[layer][selected])
        if not finite.all():
            first = np.argwhere(~finite)[0].tolist()
            got = f"NaN or infinity in the {name} of layer {layer}, first at {first}"
            raise InvalidInputError(operation, got, "finite numbers; a trace is float16, whose largest is 65,504")
