"""A recording, a trace of the same run and a table of results, as data for figures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kvviz.trace import Recording, Trace
from tests import synthetic


def recording() -> Recording:
    """A recording with 60 prompt tokens, 8 steps, 2 layers and 2 heads."""
    return synthetic.recording(prompt_length=60, steps=8, budget=24)


def table() -> pd.DataFrame:
    """A table of three methods, three budgets and three runs."""
    rows = [
        {"method": method, "budget": budget, "recall": share * (1 + run / 10), "output_error": 1 - share}
        for method, share in (("clusterkv", 0.5), ("quest", 0.25), ("mine", 0.125))
        for budget in (128, 512, 256)
        for run in range(3)
    ]
    return pd.DataFrame(rows)


def make_trace(recording: Recording) -> Trace:
    """A trace with random keys for the recording's model and tokens."""
    rng = np.random.default_rng(0)
    geometry, length = recording.geometry, len(recording.tokens)
    keys = {
        layer: rng.normal(size=(geometry.n_kv_heads, length, geometry.head_dim)).astype(np.float16) for layer in (2, 3)
    }
    queries = {layer: np.repeat(array, geometry.group_size, axis=0) for layer, array in keys.items()}
    return Trace(recording.model, geometry, recording.tokens, recording.token_ids, queries, keys, keys)
