"""Comparison: the table that compare() returns, a pandas DataFrame with the recordings of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pandas as pd

from ..errors import InvalidInputError
from ..trace import Recording

ROW = ("method", "budget")  # the columns that identify a row and its recording


class Comparison(pd.DataFrame):
    """A DataFrame with one row per method and budget, and the recordings of its rows as `recordings`.

    Tables that pandas derives from it (rows, columns, sorting, an index, copies, pickles) share its recordings. Tables
    made of several (`pd.concat`, `merge`) have none.
    """

    _metadata: ClassVar[list[str]] = ["_recordings"]  # pandas passes it on by reference; it would deep-copy `attrs`
    _recordings: Mapping[tuple[str, int], Recording] | None = None

    @property
    def _constructor(self) -> type[Comparison]:
        return Comparison

    @property
    def recordings(self) -> dict[tuple[str, int], Recording]:
        """The recordings of the rows, in their order, by (label, budget): `recordings["quest", 256]`.

        Without the columns method and budget, all recordings of the comparison. Raises InvalidInputError if they were
        not kept.
        """
        if self._recordings is None:
            got = "a table without recordings, from compare(..., recordings=False) or made of several tables"
            raise InvalidInputError("recordings of a comparison", got, "a table that kvviz.compare returned")
        if not set(ROW) <= {*self.columns, *self.index.names}:
            return dict(self._recordings)
        rows = self.index.to_frame(index=False) if set(ROW) <= set(self.index.names) else self.reset_index()
        keys = zip(rows["method"], rows["budget"], strict=True)
        return {key: self._recordings[key] for key in keys if key in self._recordings}
