"""The table that compare() returns: a pandas DataFrame from whose rows their recordings are reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pandas as pd

from ..errors import InvalidInputError
from ..trace import Recording

ROW = ("method", "budget")  # the columns that name a row, and its recording


class Comparison(pd.DataFrame):
    """A DataFrame with one row for each method and budget, whose recordings are at hand as `recordings`.

    Tables that pandas makes of one (rows, columns, sorting, an index, copies, pickles) share its recordings. What is
    made of several tables has none: `pd.concat`, `merge`.
    """

    _metadata: ClassVar[list[str]] = ["_recordings"]  # what pandas hands on, by reference; `attrs` would be copied deep
    _recordings: Mapping[tuple[str, int], Recording] | None = None

    @property
    def _constructor(self) -> type[Comparison]:
        return Comparison

    @property
    def recordings(self) -> dict[tuple[str, int], Recording]:
        """The recordings of the rows, in their order, by (label, budget in tokens): `recordings["quest", 256]`.

        All recordings of the comparison where the columns method and budget are gone. Raises InvalidInputError where
        they were not kept.
        """
        if self._recordings is None:
            got = "a table that keeps none: of compare(..., recordings=False), or made of several tables"
            raise InvalidInputError("recordings of a comparison", got, "a table that kvviz.compare returned")
        if not set(ROW) <= {*self.columns, *self.index.names}:
            return dict(self._recordings)
        rows = self.index.to_frame(index=False) if set(ROW) <= set(self.index.names) else self.reset_index()
        keys = zip(rows["method"], rows["budget"], strict=True)
        return {key: self._recordings[key] for key in keys if key in self._recordings}
