"""MethodComparer: methods side by side at the same step of the same text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import traitlets

from ..trace import Recording
from ..trace.edit_parts import Named
from . import comparer_content, comparer_page, comparer_view, head_maps, snapshot_content, unions, view
from .live import LiveWidget
from .page import Embedded, self_contained
from .snapshot import Snapshot

CACHED = 12  # pairs of layer and head; 64 steps over 8,192 tokens take about 1 MB per method


class MethodComparer(LiveWidget):
    """A widget that shows several recordings of one model and prompt at the same step, one column per recording.

    `recordings` is a sequence, whose columns are named after their methods, or a mapping from label to recording. A
    column shows the numbers of the step with their means over the steps, a curve of one number over the steps (the
    current step framed), a map of steps × positions, the prompt with three marks (agreed with the oracle of the same
    size: filled, missed: outlined, wasted: hatched; sinks and the recent window are dotted), and the answer. Arrow keys
    change the step of all columns, Home and End jump to the ends; all prompts scroll together. A drag over a map, or
    the keys of the DecodeStepper's, zooms all maps in to these positions.

    `union` "layer" shows all heads of the layer as one, as in the DecodeStepper; "kv_head" joins the query heads of the
    KV head of `head`, in recordings with one row per query head. The last rows of the map pick them.

    `step` (from 0), `layer`, `head` (a KV head; a recording with one row per query head shows the first one of that KV
    head), `token` and `sort` are traits: set them from Python, or observe them. The texts open at the position `token`,
    which is outlined in all of them; a click on a token or a map changes it. If it is -1, they open at the selected
    token with the most attention. `sort` orders the columns, the best first: "given" (no sorting), a number of the step
    ("recall", "mass", "attended", "read", "moved", "error"), or its mean ("mean recall"). A step needs no kernel; the
    kernel packs another layer or head and sends it once.

    The map of layers × heads, above, shows how much the methods differ in each head, and picks one. `span` names tokens
    of the prompt, as for `kvviz.pin`: they are marked, the map shows how much each head attends to them, and the widget
    opens at the head that does most and at the first of them, unless `layer`, `head` or `token` say otherwise.

    Recordings that differ in steps or layers are compared over what they share; a note says so. Raises
    InvalidInputError for no recording, recordings without steps or layers, of different models or prompts or without a
    shared layer, and for a step, layer, head or token that one of them lacks; UnknownNameError for an unknown `sort`
    or `union`.
    """

    _kvviz_view = traitlets.Unicode("comparer").tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)
    layer = traitlets.Int(0).tag(sync=True)
    head = traitlets.Int(0).tag(sync=True)
    union = traitlets.Unicode(unions.NONE).tag(sync=True)
    token = traitlets.Int(-1).tag(sync=True)
    sort = traitlets.Unicode("given").tag(sync=True)
    page = traitlets.Dict().tag(sync=True)
    slices = traitlets.List(traitlets.Bytes()).tag(sync=True)

    def __init__(
        self,
        recordings: Sequence[Recording] | Mapping[str, Recording],
        *,
        step: int = 0,
        layer: int | None = None,
        head: int | None = None,
        token: int | None = None,
        sort: str = "given",
        span: Named | None = None,
        union: str = unions.NONE,
    ) -> None:
        self.common = comparer_content.compared(recordings)
        self._columns = lru_cache(CACHED)(self._compared)
        common = self.common
        prompt = common.recordings[0].tokens[: common.recordings[0].prompt_length]
        positions = head_maps.span_positions("MethodComparer", span, prompt)
        maps = head_maps.of_recordings(common.recordings, common.layers, common.heads, positions)
        first = head_maps.strongest(maps[0], layer) if positions else (common.layers[0], 0)
        head = first[1] if head is None else head
        token = (positions[0] if positions else -1) if token is None else token
        self.common.check("step", step)
        self.common.check("token", token)
        comparer_content.check_sort(sort)
        layer = first[0] if layer is None else layer
        page = comparer_content.describe(self.common, [_colours(run) for run in self.common.recordings])
        page |= {"head_maps": maps, "span": list(positions), **unions.describe(common.recordings, common.heads)}
        slices = self.packed(layer, head, union)
        super().__init__(
            step=step, layer=layer, head=head, union=union, token=token, sort=sort, page=page, slices=slices
        )

    def packed(self, layer: int, head: int, union: str = unions.NONE) -> list[bytes]:
        """The columns of a layer and head, or of the union that the head belongs to, packed as bytes for js/slice.js.

        Raises InvalidInputError for a layer or head that one of the recordings lacks, UnknownNameError for a union that
        none of them has.
        """
        unions.check("MethodComparer", unions.offered(self.common.recordings), union)
        columns = self._columns(self.common.check("layer", layer), self.common.check("head", head), union)
        return [view.pack(arrays, layer, head) for arrays in columns]

    def snapshot(self) -> Snapshot:
        """The step, layer and head now shown, as a picture and words."""
        heads = unions.name(self.page["head_name"], self.head, self.union, self.page["per_kv_head"])
        place = {"step": self.step, "layer": self.layer, "heads": heads}
        columns = self._columns(self.layer, self.head, self.union)
        return snapshot_content.comparer(self.common, columns, self.page, place)

    def to_html(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
    ) -> str:
        """A self-contained HTML page that compares the recordings without a kernel; also written to `path`, atomically.

        It embeds all steps of `layers` (default: the one now shown) and `heads` (default: all), and says which. With
        all heads, it embeds their unions too. The map of heads has the numbers of all layers and heads, and marks those
        that the page does not embed. Raises InvalidInputError as for `layer` and `head`.
        """
        return self_contained(self.page["description"], [self.embedded(layers, heads)], path)

    def embedded(self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Embedded:
        """The widget as it is in the page of `to_html`."""
        names = ("step", "layer", "head", "union", "token", "sort", "page")
        shown = {name: getattr(self, name) for name in names}
        return comparer_page.embedded(self.common, self.packed, shown, layers, heads)

    def _compared(self, layer: int, head: int, union: str) -> list[dict[str, Any]]:
        """The column of every recording at a layer and head, or of a union of heads."""
        columns = []
        for number, run in enumerate(self.common.recordings):
            row = self.common.row(number, head)
            if union == unions.NONE:
                arrays = view.token_arrays(run, layer, row)
            else:
                arrays = unions.arrays(run, layer, unions.rows_of(run, row, union), union)
            columns.append(comparer_view.column(arrays, self.common.steps, run.prompt_length))
        return columns

    @traitlets.validate("step", "layer", "head", "token")
    def _check(self, proposal: Any) -> int:
        return self.common.check(proposal["trait"].name, proposal["value"])

    @traitlets.validate("sort")
    def _check_sort(self, proposal: Any) -> str:
        return comparer_content.check_sort(proposal["value"])

    @traitlets.validate("union")
    def _check_union(self, proposal: Any) -> str:
        return unions.check("MethodComparer", self.page["unions"], proposal["value"])

    @traitlets.observe("layer", "head", "union")
    def _repack(self, change: Any) -> None:
        self.slices = self.packed(self.layer, self.head, self.union)


def _colours(run: Recording) -> dict[str, str]:
    from ..plots.theme import recorded_style  # loads plotly

    return {"light": recorded_style(run)["color"], "dark": recorded_style(run, dark=True)["color"]}
