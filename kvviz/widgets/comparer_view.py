"""Arrays of one column of the comparer: the stepper's lists, cut to the shared steps, and a map of verdicts.

This module only arranges; the numbers come from `Recording` and `kvviz.metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import unions, view

Array = NDArray[Any]

# A byte of the map is metrics.Verdict * view.LEVELS + level. js/map_colours.js reads the same bytes.
_LISTS = ("positions", "groups", "scores", "weights", "marks")
_CURVES = {
    "recall": "recall", "mass": "mass", "read_bytes": "read", "moved_bytes": "moved", "output_error": "error",
}  # fmt: skip


def column(arrays: Mapping[str, Array], steps: int, prompt_length: int) -> dict[str, Array]:
    """The arrays of a column, from those of `view.token_arrays` or `unions.arrays`, cut to the first `steps` steps.

    The lists of all steps are concatenated; `offsets` [steps+1] holds their bounds. `looks` hold only the level of
    attention, or of the share of heads; `cell_looks` are those of the map. Recall, mass, attended, read, moved and
    error are [steps] each. `map_positions` and `map_looks` [steps, columns] describe the marked token with the most
    attention in each column.
    """
    offsets = arrays["offsets"][: steps + 1]
    counts = unions.COUNTS if "union" in arrays else ()
    lists = {name: arrays[name][: offsets[-1]] for name in (*_LISTS, *counts)}
    attended = np.concatenate([[0], np.cumsum(lists["marks"] & view.ATTENDED > 0)])[offsets]
    numbers = {short: arrays[name][:steps] for name, short in _CURVES.items()} | {"attended": np.diff(attended)}
    levels = arrays["levels"][: offsets[-1]] if "union" in arrays else view.level(lists["weights"])
    whole = {"union": arrays["union"]} if "union" in arrays else {}
    cell_looks = (view.verdicts(lists["marks"]) * view.LEVELS + levels).astype(np.uint8)
    shown = {**lists, "offsets": offsets, "cell_looks": cell_looks}
    return {
        **shown, **whole, **{name: values.astype(np.float64) for name, values in numbers.items()}, "looks": levels,
        **view.step_map(shown, prompt_length + steps, attended_first=False),
    }  # fmt: skip
