"""TokenStrip: running text whose tokens have tints and marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..errors import InvalidInputError
from . import snapshot_content, view
from .live import LiveWidget
from .snapshot import Snapshot


class TokenStrip(LiveWidget):
    """A widget that shows `tokens` as running text; each token has a look and a mark of one byte.

    A look is `kvviz.trace.hues.hue(group) * view.LEVELS + view.level(weight)`, or `view.NOTHING`; a mark is a sum of
    `view.ATTENDED`, `ORACLE`, `SINK`, `RECENT` and `GENERATED`, or 0 for plain text. `paint` changes both without a new
    layout of the text. `hovered` and `clicked` are the positions under the pointer and last clicked, -1 for none;
    setting `focus` scrolls to a position. Of more than 20,000 tokens, 8,000 are shown at once.
    """

    _kvviz_view = traitlets.Unicode("strip").tag(sync=True)
    tokens = traitlets.List(traitlets.Unicode()).tag(sync=True)
    label = traitlets.Unicode("tokens").tag(sync=True)
    looks = traitlets.Bytes().tag(sync=True)
    marks = traitlets.Bytes().tag(sync=True)
    hovered = traitlets.Int(-1).tag(sync=True)
    clicked = traitlets.Int(-1).tag(sync=True)
    focus = traitlets.Int(-1).tag(sync=True)

    def __init__(self, tokens: Sequence[str], *, label: str = "tokens") -> None:
        if not tokens:
            raise InvalidInputError("TokenStrip", "no tokens", "at least one")
        plain = np.zeros(len(tokens), np.uint8)
        looks = plain + view.NOTHING
        super().__init__(tokens=list(tokens), label=label, looks=looks.tobytes(), marks=plain.tobytes())

    def snapshot(self) -> Snapshot:
        """The text with its looks and marks, as a picture and words."""
        looks, marks = (np.frombuffer(values, np.uint8) for values in (self.looks, self.marks))
        return snapshot_content.strip(self.tokens, self.label, looks, marks, self.focus)

    def paint(self, looks: NDArray[np.uint8], marks: NDArray[np.uint8]) -> None:
        """Set the look and the mark of every token, uint8 [L] each.

        Raises InvalidInputError for another shape or dtype.
        """
        length = len(self.tokens)
        for name, array in (("looks", looks), ("marks", marks)):
            if array.dtype != np.uint8 or array.shape != (length,):
                got = f"{array.dtype} {list(array.shape)}"
                raise InvalidInputError(f"TokenStrip.paint: {name}", got, f"uint8 [{length}]")
        with self.hold_sync():
            self.looks, self.marks = looks.tobytes(), marks.tobytes()
