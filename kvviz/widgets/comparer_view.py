"""What a column of the comparer draws, as arrays: the stepper's lists, cut to the common steps, and a map of verdicts.

Everything here is arrangement; the numbers come from `Recording` and `kvviz.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import metrics
from . import view

Array = NDArray[Any]

# A byte of the map is metrics.Verdict * view.LEVELS + level. js/comparer_column.js reads the same bytes.
_LISTS = ("positions", "groups", "scores", "weights", "marks")
_CURVES = {
    "recall": "recall", "mass": "mass", "read_bytes": "read", "moved_bytes": "moved", "output_error": "error",
}  # fmt: skip


def column(arrays: Mapping[str, Array], steps: int, prompt_length: int) -> dict[str, Array]:
    """A column's arrays from those of `view.token_arrays`, cut to its first `steps` steps.

    Per-step lists lie end to end, bounded by `offsets` [steps+1]; `looks` carry the level of attention alone. The
    numbers by step, [steps] each, are recall, mass, attended, read, moved and error. `map_positions` and `map_looks`
    [steps, columns] are of the marked token with the most attention in each column.
    """
    offsets = arrays["offsets"][: steps + 1]
    lists = {name: arrays[name][: offsets[-1]] for name in _LISTS}
    attended = np.concatenate([[0], np.cumsum(lists["marks"] & view.ATTENDED > 0)])[offsets]
    numbers = {short: arrays[name][:steps] for name, short in _CURVES.items()} | {"attended": np.diff(attended)}
    levels = view.level(lists["weights"])
    positions, looks = _map(lists, levels, offsets, prompt_length + steps)
    return {
        **lists, **{name: values.astype(np.float64) for name, values in numbers.items()},
        "offsets": offsets, "looks": levels, "map_positions": positions, "map_looks": looks,
    }  # fmt: skip


def _map(
    lists: Mapping[str, Array], levels: Array, offsets: Array, length: int
) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    steps = len(offsets) - 1
    at = np.repeat(np.arange(steps), np.diff(offsets)), lists["positions"]
    rank, looks = np.zeros((steps, length), np.float32), np.full((steps, length), view.NOTHING, np.uint8)
    rank[at] = lists["weights"] + 1  # a marked token comes before all others
    looks[at] = view.verdicts(lists["marks"]) * view.LEVELS + levels
    drawn = np.stack([metrics.pool_argmax(row, view.MAP_COLUMNS) for row in rank])
    return drawn.astype(np.int32), np.take_along_axis(looks, drawn, axis=1)
