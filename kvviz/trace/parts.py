"""ArrayFile: a safetensors file whose arrays are written part by part, as they are made, and never held in memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from .storage import NUMPY_DTYPES, header_texts, replacing

NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
Layout = Mapping[str, tuple[str, tuple[int, ...]]]  # dtype, one of NUMPY_DTYPES' values, and shape by name


class ArrayFile:
    """An open file with room for all arrays of a layout; `write` fills it."""

    def __init__(self, file: IO[bytes], layout: Layout, texts: Mapping[str, str]) -> None:
        self._file, self._layout = file, layout
        self._starts: dict[str, int] = {}
        entries: dict[str, Any] = {"__metadata__": dict(texts)}
        stop = 0
        for name in sorted(layout, key=lambda name: (-np.dtype(layout[name][0]).itemsize, name)):  # aligned
            dtype, shape = layout[name]
            start, stop = stop, stop + np.dtype(dtype).itemsize * math.prod(shape)
            self._starts[name] = start
            entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        file.write(len(header).to_bytes(8, "little") + header)
        self._base = file.tell()
        file.truncate(self._base + stop)

    def write(self, name: str, part: NDArray[Any], start: int = 0) -> None:
        """Write `part` [..., n, D] as the rows from `start` of the array [..., L, D], or all of a 1-D array."""
        dtype, shape = self._layout[name]
        lead, rows, width = (1, 1, shape[0]) if len(shape) == 1 else (math.prod(shape[:-2]), *shape[-2:])
        pieces = np.ascontiguousarray(part, dtype).reshape(lead, -1, width)
        for index, piece in enumerate(pieces):
            place = (index * rows + start) * width * np.dtype(dtype).itemsize
            self._file.seek(self._base + self._starts[name] + place)
            self._file.write(piece.data)


@contextmanager
def writing_arrays(
    path: str | os.PathLike[str], kind: str, version: int, layout: Layout, metadata: Mapping[str, Any]
) -> Iterator[ArrayFile]:
    """An ArrayFile that becomes the file at `path` if the block succeeds; `read_arrays` reads it.

    Nothing is left of it if the block raises. Raises InvalidInputError for metadata that JSON cannot hold, and OSError
    if the file cannot be written.
    """
    texts = header_texts(Path(path), kind, version, metadata)
    with replacing(path) as partial, partial.open("wb") as file:
        yield ArrayFile(file, layout, texts)
