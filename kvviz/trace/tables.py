"""Tables of fixed columns, as data frames in memory and as arrays in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IncompatibleFileError
from .storage import take

if TYPE_CHECKING:
    import pandas as pd

DTYPES: Mapping[type, Any] = {
    int: np.int64, float: np.float64, bool: np.uint8, np.int32: np.int32, np.float32: np.float32,
}  # fmt: skip
Columns = Mapping[str, "type | Sequence[str]"]  # a column of numbers or truth values, or of these texts


def to_table(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a data frame with these columns; each row names them all."""
    import pandas as pd

    return pd.DataFrame({
        name: pd.Series([row[name] for row in rows], dtype=kind if isinstance(kind, type) else "object")
        for name, kind in columns.items()
    })  # fmt: skip


def to_column(texts: Sequence[str]) -> pd.Series[Any]:
    """The texts as a column; pandas 3 would choose a dtype of its own, which older versions lack."""
    import pandas as pd

    return pd.Series(texts, dtype="object")


def to_arrays(name: str, columns: Columns, table: pd.DataFrame) -> dict[str, NDArray[Any]]:
    """The table's columns as arrays `name.column` that a file can hold; texts as their number in the columns' list."""
    arrays = {}
    for column, kind in columns.items():
        if not isinstance(kind, type):
            arrays[f"{name}.{column}"] = np.array([list(kind).index(text) for text in table[column]], np.uint8)
        else:
            arrays[f"{name}.{column}"] = table[column].to_numpy(DTYPES[kind])
    return arrays


def from_arrays(name: str, columns: Columns, arrays: Mapping[str, NDArray[Any]], path: object) -> pd.DataFrame:
    """The table of `to_arrays`. Raises IncompatibleFileError if a column is missing or not as it writes it."""
    import pandas as pd

    found = {}
    for column, kind in columns.items():
        array = take(arrays, f"{name}.{column}", path)
        dtype = DTYPES[kind] if isinstance(kind, type) else np.uint8
        if array.ndim != 1 or array.dtype != dtype:
            wanted = f"{np.dtype(dtype)} [rows]"
            raise IncompatibleFileError(f"read {path}: {name}.{column}", f"{array.dtype} {list(array.shape)}", wanted)
        if not isinstance(kind, type):
            texts = np.array(list(kind), dtype=object)
            if array.size and not (array.min() >= 0 and array.max() < len(texts)):
                wanted = f"0 to {len(texts) - 1}"
                raise IncompatibleFileError(f"read {path}: {name}.{column}", f"number {array.max()}", wanted)
            found[column] = pd.Series(texts[array], dtype="object")
        else:
            found[column] = pd.Series(np.array(array)).astype(kind)
    if len({len(column) for column in found.values()}) > 1:
        raise IncompatibleFileError(f"read {path}: {name}", "columns of different lengths", "one length")
    return pd.DataFrame(found)
