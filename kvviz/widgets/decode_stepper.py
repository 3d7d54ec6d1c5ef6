"""Step through a recording: the prompt with its attended tokens, a map of all steps, the numbers of each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..trace import Recording
from . import content, static_page, view
from .live import LiveWidget

CACHED = 12  # layers and heads; 64 steps over 8,192 tokens pack to about 1 MB a head


class DecodeStepper(LiveWidget):
    """A widget that replays `recording`, one decode step at a time.

    The prompt is running text: attended tokens are tinted (hue: cluster; strength: exact attention), those that the
    oracle would take are underlined, what was recalled in vain is hatched, what was missed is outlined, sinks and the
    recent window are dotted. Beside it a map of steps × positions; under it the clusters recalled and the text written
    so far. Arrow keys change the step, Home and End go to the ends, the space bar plays.

    `step` (from 0), `layer` and `head` (row of the recording's arrays: a KV head, or a query head where the method
    chooses for each) are traits: set them from Python, or observe them. A step needs no kernel; another layer or head
    is packed here and sent once.

    Raises InvalidInputError for a recording without steps or layers, and for a step, layer or head it does not have.
    """

    _kvviz_view = traitlets.Unicode("stepper").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    slice = traitlets.Bytes().tag(sync=True)

    def __init__(self, recording: Recording, *, step: int = 0, layer: int | None = None, head: int = 0) -> None:
        self.recording = content.check(recording)
        self._arrays = lru_cache(CACHED)(lambda number, row: view.row_arrays(recording, number, row))
        content.check_step(recording, step)
        layer = recording.layers[0] if layer is None else layer
        packed = self._pack(layer, head)
        super().__init__(step=step, layer=layer, head=head, page=content.describe(recording), slice=packed)

    def highlighted(self) -> NDArray[np.int64]:
        """The positions attended at the step, layer and head now shown, int64, ascending."""
        indices = self.recording.indices(self.step, self.layer)[self.head]
        return np.asarray(indices[indices >= 0])

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> str:
        """One HTML page that replays the recording without a kernel or a network; written to `path` where one is given.

        All steps of the given layers and heads are embedded. Without `layers`, the layer now shown and as many others,
        evenly spread, as fit in about 8 MB; the page says which. The file appears whole or not at all.
        """
        shown = static_page.Shown(self.step, self.layer, self.head)
        return static_page.to_html(self.recording, shown, path=path, layers=layers, heads=heads)

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int:
        return content.check_step(self.recording, proposal["value"])

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Any) -> int:
        return content.check_layer(self.recording, proposal["value"])

    @traitlets.validate("head")
    def _check_head(self, proposal: Any) -> int:
        return content.check_head(self.recording, proposal["value"])

    @traitlets.observe("layer", "head")
    def _repack(self, change: Any) -> None:
        self.slice = self._pack(self.layer, self.head)

    def _pack(self, layer: int, head: int) -> bytes:
        content.check_layer(self.recording, layer)
        content.check_head(self.recording, head)
        return view.pack(self._arrays(layer, head), layer, head)
