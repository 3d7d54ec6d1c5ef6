"""The costs of methods: times, tokens and bytes, and their ratios to full attention."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InvalidInputError
from .statistics import SAMPLE, SETTING, checked_rows

if TYPE_CHECKING:
    import pandas as pd

TIMES = ["ttft_s", "tt2t_s", "tpot_s"]
MEASURED = [*TIMES, "attended_tokens", "metadata_bytes", "kept_bytes", "peak_bytes"]
BYTES_HELD = ["held_bytes", "read_bytes"]  # NaN in results of earlier releases
WITH_RATIO = [name for name in MEASURED if name != "metadata_bytes"]  # full attention has no metadata
SAME_SAMPLE = [*SETTING, *SAMPLE, "hardware"]
CELL = ["hardware", "length", "method", "budget"]


def costs(results: pd.DataFrame | str | os.PathLike[str]) -> pd.DataFrame:
    """Median costs per hardware, length, method and budget, with the ratios to full attention.

    `results` is a table of `load_results`, or the path of a results file. Columns: hardware, length, method, budget
    (NaN for a method that ignores it), n (samples), the columns of costs that `evaluate` describes (ttft_s, tt2t_s,
    tpot_s, attended_tokens, metadata_bytes, kept_bytes, peak_bytes, held_bytes, read_bytes), and the ratio of each
    except metadata_bytes ("ttft_s_ratio"). Medians are over the samples of all tasks. A ratio is the median over
    samples of the method's cost divided by the cost of the method `full` on the same sample and hardware; NaN without
    `full`.

    Only the first turn of a sample counts, since the later ones have no prefill. Refused cells are left out, and a time
    that an answer lacks (it has no second token) is left out of its median. Times of one process at a time (`jobs=1`)
    are comparable; several processes slow each other down.

    Raises InvalidInputError for missing columns, and the errors of `kvviz.evaluation.summary`.
    """
    table = checked_rows("costs", results)
    missing = [name for name in ["hardware", "method_name", *MEASURED] if name not in table.columns]
    if missing:
        raise InvalidInputError("costs: columns", list(table.columns), f"also {', '.join(missing)}")
    table = table.assign(**{name: np.nan for name in BYTES_HELD if name not in table.columns})
    rows = table[(table["refused"] == "") & (table["turn"] == 0)]
    full = rows[rows["method_name"] == "full"].drop_duplicates(SAME_SAMPLE)
    compared = [*WITH_RATIO, *BYTES_HELD]
    pairs = rows.merge(full[[*SAME_SAMPLE, *compared]], on=SAME_SAMPLE, how="left", suffixes=("", "_of_full"))
    ratios = {f"{name}_ratio": pairs[name] / pairs[f"{name}_of_full"] for name in compared}
    cells = pairs.assign(**ratios).groupby(CELL, dropna=False)
    medians: pd.DataFrame = cells[[*MEASURED, *BYTES_HELD, *ratios]].median()
    medians.insert(0, "n", cells.size())
    return medians.reset_index()
