"""CanvasMatrix: a matrix of bytes painted on a canvas."""

from __future__ import annotations

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..errors import InvalidInputError
from . import snapshot_content
from .live import LiveWidget
from .snapshot import Snapshot


class CanvasMatrix(LiveWidget):
    """A widget that paints `matrix`, uint8 [rows, columns], with a palette of 256 colours.

    `colours` is uint8 [256, 4] (RGBA); without it, the bytes are looks as in `kvviz.widgets.view`, in the page's theme.
    `row` is framed, -1 for none. `hovered` and `clicked` are the [row, column] under the pointer and last clicked,
    [-1, -1] for none. As on the maps of the other widgets, a drag over columns zooms in, and so do + and −, or Shift
    with ← and → and then Enter; 0 shows all. The browser squeezes columns that are narrower than a pixel: pool a matrix
    first, with `kvviz.metrics.pool_argmax`, so that spikes survive.
    """

    _kvviz_view = traitlets.Unicode("matrix").tag(sync=True)
    values = traitlets.Bytes().tag(sync=True)
    shape = traitlets.List(traitlets.Int(), minlen=2, maxlen=2).tag(sync=True)
    colours = traitlets.Bytes().tag(sync=True)
    label = traitlets.Unicode("matrix").tag(sync=True)
    row = traitlets.Int(-1).tag(sync=True)
    hovered = traitlets.List(traitlets.Int(), [-1, -1]).tag(sync=True)
    clicked = traitlets.List(traitlets.Int(), [-1, -1]).tag(sync=True)

    def __init__(
        self, matrix: NDArray[np.uint8], *, colours: NDArray[np.uint8] | None = None, label: str = "matrix"
    ) -> None:
        if colours is not None and (colours.dtype != np.uint8 or colours.shape != (256, 4)):
            raise InvalidInputError("CanvasMatrix: colours", f"{colours.dtype} {list(colours.shape)}", "uint8 [256, 4]")
        _check(matrix)
        super().__init__(label=label, shape=list(matrix.shape), values=matrix.tobytes(),
                         colours=b"" if colours is None else colours.tobytes())  # fmt: skip

    def snapshot(self) -> Snapshot:
        """The matrix now shown, as a picture and words."""
        values = np.frombuffer(self.values, np.uint8).reshape(self.shape)
        colours = np.frombuffer(self.colours, np.uint8).reshape(256, 4) if self.colours else None
        return snapshot_content.matrix(values, colours, self.label)

    def paint(self, matrix: NDArray[np.uint8]) -> None:
        """Show another matrix, uint8 [rows, columns]; raises InvalidInputError for another dtype or shape."""
        _check(matrix)
        with self.hold_sync():
            self.shape, self.values = list(matrix.shape), matrix.tobytes()


def _check(matrix: NDArray[np.uint8]) -> None:
    if matrix.dtype != np.uint8 or matrix.ndim != 2 or 0 in matrix.shape:
        got = f"{matrix.dtype} {list(matrix.shape)}"
        raise InvalidInputError("CanvasMatrix", got, "uint8 [rows, columns], not empty")
