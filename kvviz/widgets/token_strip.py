"""Running text whose tokens carry a tint and marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..errors import InvalidInputError
from . import view
from .live import LiveWidget


class TokenStrip(LiveWidget):
    """A widget that shows `tokens` as running text, each with a look and marks, one byte each.

    A look is `kvviz.trace.hues.hue(group) * view.LEVELS + view.level(weight)`, or `view.NOTHING`; a mark is a sum of
    `view.ATTENDED`, `ORACLE`, `SINK`, `RECENT` and `GENERATED`, 0 for a token that is plain text. `paint` changes both
    without laying the text out again. `hovered` and `clicked` are the position under the pointer and the last one
    clicked, -1 for none; setting `focus` scrolls to a position. Above 20,000 tokens a window of them is shown.
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

    def paint(self, looks: NDArray[np.uint8], marks: NDArray[np.uint8]) -> None:
        """Give every token its look and marks, uint8 [L] each.

        Raises InvalidInputError where shape or dtype differ.
        """
        length = len(self.tokens)
        for name, array in (("looks", looks), ("marks", marks)):
            if array.dtype != np.uint8 or array.shape != (length,):
                got = f"{array.dtype} {list(array.shape)}"
                raise InvalidInputError(f"TokenStrip.paint: {name}", got, f"uint8 [{length}]")
        with self.hold_sync():
            self.looks, self.marks = looks.tobytes(), marks.tobytes()
