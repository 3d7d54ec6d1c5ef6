"""A tiny recording for the examples in docstrings: two decode steps after a prompt of two tokens."""

from __future__ import annotations

import numpy as np

from ..trace import Geometry, LayerEvents, Recording


def example_recording() -> Recording:
    """A recording of one layer and head: Quest attends to tokens 0 and 1 twice, the oracle to 0 and 1, then 1 and 2."""
    attention = np.array([[[0.6, 0.3, 0.1, 0.0]], [[0.1, 0.5, 0.3, 0.1]]])  # [T, R, N]
    indices = np.array([[[0, 1]], [[0, 1]]], np.int32)  # [T, R, S]
    zeros = np.zeros(2, np.int64)
    events = LayerEvents(
        indices=indices, groups=np.zeros_like(indices), scores=np.zeros(indices.shape, np.float32),
        attention=attention.astype(LayerEvents.FIELDS["attention"]), output_error=np.zeros(2, np.float32),
        merged=np.zeros((2, 1), np.int32),
        read_bytes=zeros, moved_bytes=zeros, select_s=np.zeros(2, np.float32),
    )  # fmt: skip
    return Recording(
        method="quest", title="Quest", config={}, budget=2, model="example", geometry=Geometry(1, 1, 1, 8, 16),
        tokens=["a", "b", "c", "d"], token_ids=np.arange(4), next_tokens=["d", "e"], prompt_length=2,
        events={0: events},
    )  # fmt: skip
