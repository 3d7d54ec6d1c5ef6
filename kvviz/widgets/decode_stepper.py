"""DecodeStepper: a recording step by step, with the attended tokens in the prompt, a map of all steps and numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from ..trace import Recording
from ..trace.edit_parts import Named
from . import content, head_maps, snapshot_content, static_page, unions, view
from .live import LiveWidget
from .page import Embedded, self_contained
from .snapshot import Snapshot

CACHED = 12  # pairs of layer and head; 64 steps over 8,192 tokens take about 1 MB per head


class DecodeStepper(LiveWidget):
    """A widget that replays `recording`, one decode step at a time.

    The prompt is running text. Attended tokens are tinted (hue: cluster; strength: exact attention); tokens that the
    oracle would attend to are underlined, wasted tokens hatched, missed tokens outlined, sinks and the recent window
    dotted. Next to it is a map of steps × positions; below are the recalled clusters and the text written so far.
    Arrow keys change the step, Home and End jump to the ends, the space bar plays, "/" finds text in the prompt. The
    map of layers × heads, above, shows a number of each head, and picks one.

    A drag over the map, or a finger that moves sideways, zooms in to these positions, down to single tokens; with the
    focus on the map, so do + and −, or Shift with ← and → and then Enter, and 0 shows all positions again. Every number
    says what it is about (this head, this layer), and what it means when it is pointed at, tapped, or reached by ↑ and
    ↓ in its group.

    `span` names tokens of the prompt, as for `kvviz.pin`: they are marked, the map shows how much each head attends to
    them, and the widget opens at the head that does most, unless `layer` or `head` say otherwise.

    `union` "layer" shows all heads of the layer as one: a token is tinted by the share of the heads that attended to
    it, its verdict is that of `Recording.union`, and recall and mass are means over the heads. "kv_head" joins the
    query heads of the KV head of `head`, if the method selects per query head. The last rows of the map pick them.

    `step` (from 0), `layer` and `head` (row of the recording's arrays: a KV head, or a query head if the method selects
    per query head) are traits: set them from Python, or observe them. So is `token`, the position in the prompt that
    was clicked last (-1: none), which a MissInspector can follow. A step needs no kernel; the kernel packs another
    layer or head and sends it once.

    Raises InvalidInputError for a recording without steps or layers, or a step, layer or head that it does not have;
    UnknownNameError for a union that it does not have.
    """

    _kvviz_view = traitlets.Unicode("stepper").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    union = traitlets.Unicode(unions.NONE).tag(sync=True)
    token = traitlets.Int(-1).tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    slice = traitlets.Bytes().tag(sync=True)

    def __init__(
        self,
        recording: Recording,
        *,
        step: int = 0,
        layer: int | None = None,
        head: int | None = None,
        span: Named | None = None,
        union: str = unions.NONE,
    ) -> None:
        self.recording = content.check(recording)
        self._arrays = lru_cache(CACHED)(lambda *place: unions.shown(recording, *place))
        content.check_step(recording, step)
        positions = head_maps.span_positions("DecodeStepper", span, recording.tokens[: recording.prompt_length])
        maps = head_maps.of_recording(recording, positions)
        first = head_maps.strongest(maps[0], layer) if positions else (recording.layers[0], 0)
        layer, head = first[0] if layer is None else layer, first[1] if head is None else head
        packed = self._pack(layer, head, union)
        page = content.describe(recording) | unions.describe([recording], content.rows(recording))
        page |= {"head_maps": maps, "span": list(positions)}
        super().__init__(step=step, layer=layer, head=head, union=union, page=page, slice=packed)

    def highlighted(self) -> NDArray[np.int64]:
        """The positions attended at the step, layer and head, or union of heads, now shown, int64, ascending."""
        indices = self.recording.indices(self.step, self.layer)[unions.rows_of(self.recording, self.head, self.union)]
        return np.unique(indices[indices >= 0]).astype(np.int64)

    def snapshot(self) -> Snapshot:
        """The step, layer and head now shown, as a picture and words."""
        arrays = self._arrays(self.layer, self.head, self.union)
        heads = unions.name(self.page["head_name"], self.head, self.union, self.page["per_kv_head"])
        return snapshot_content.stepper(self.recording, arrays, self.layer, heads, self.step)

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> str:
        """A self-contained HTML page that replays the recording without a kernel; also written to `path`, atomically.

        It embeds all steps of `layers` and `heads`, and says which. Without `layers`, these are the layer now shown and
        as many others, evenly spread, as fit into about 8 MB. With all heads, it embeds their unions too.
        """
        return self_contained(self.recording.description, [self.embedded(layers, heads)], path)

    def embedded(self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Embedded:
        """The widget as it is in the page of `to_html`."""
        shown = static_page.Shown(self.step, self.layer, self.head, self.union)
        return static_page.embedded(self.recording, shown, layers, heads, self.page)

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> int:
        return content.check_step(self.recording, proposal["value"])

    @traitlets.validate("layer")
    def _check_layer(self, proposal: Any) -> int:
        return content.check_layer(self.recording, proposal["value"])

    @traitlets.validate("head")
    def _check_head(self, proposal: Any) -> int:
        return content.check_head(self.recording, proposal["value"])

    @traitlets.validate("union")
    def _check_union(self, proposal: Any) -> str:
        return unions.check("DecodeStepper", self.page["unions"], proposal["value"])

    @traitlets.observe("layer", "head", "union")
    def _repack(self, change: Any) -> None:
        self.slice = self._pack(self.layer, self.head, self.union)

    def _pack(self, layer: int, head: int, union: str) -> bytes:
        content.check_layer(self.recording, layer)
        content.check_head(self.recording, head)
        unions.check("DecodeStepper", unions.offered([self.recording]), union)
        return view.pack(self._arrays(layer, head, union), layer, head)
