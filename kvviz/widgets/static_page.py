"""The stepper in a self-contained HTML file, which replays a recording without a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..trace import Recording
from . import content, view
from .page import Blob, Embedded, blob

SIZE_LIMIT = 8_000_000  # bytes of embedded slices, unless `layers` are given


class Shown(NamedTuple):
    """The step, layer and head with which a page opens."""

    step: int
    layer: int
    head: int


def embedded(
    recording: Recording,
    shown: Shown,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    described: Mapping[str, Any],
) -> Embedded:
    """The stepper for a page, which `described` describes.

    `layers` and `heads` are embedded; without `layers`, the one shown and as many others as fit into SIZE_LIMIT.
    Raises InvalidInputError for a layer or head that was not recorded.
    """
    chosen_heads = range(content.rows(recording)) if heads is None else heads
    embedded_heads = content.held("DecodeStepper.to_html: heads", chosen_heads, partial(content.check_head, recording))
    if shown.head not in embedded_heads:
        shown = shown._replace(head=embedded_heads[0])
    if layers is not None:
        chosen = content.held("DecodeStepper.to_html: layers", layers, partial(content.check_layer, recording))
        if shown.layer not in chosen:
            shown = shown._replace(layer=chosen[0])
        slices = {layer: _slices(recording, layer, embedded_heads) for layer in chosen}
    else:
        slices = _fitting(recording, shown.layer, embedded_heads)
    page = {**described, "layers": sorted(slices), "heads": embedded_heads}
    counts = len(recording.layers), content.rows(recording)
    page["notes"] = content.left_out(sorted(slices), counts[0], embedded_heads, counts[1], "recorded")
    answers = [
        ({"layer": layer, "head": head}, {"slice": packed})
        for layer, by_head in slices.items()
        for head, packed in by_head.items()
    ]
    return Embedded("stepper", {"page": page, **shown._asdict(), "token": -1}, answers)


def _fitting(recording: Recording, first: int, heads: Sequence[int]) -> dict[int, dict[int, Blob]]:
    """Slices of `first` and of other layers, always the one farthest from those embedded, up to SIZE_LIMIT."""
    slices = {first: _slices(recording, first, heads)}
    left = SIZE_LIMIT - _size(slices[first])
    while rest := set(recording.layers) - set(slices):
        layer = max(sorted(rest), key=lambda number: min(abs(number - embedded) for embedded in slices))
        by_head = _slices(recording, layer, heads)
        left -= _size(by_head)
        if left < 0:
            break
        slices[layer] = by_head
    return slices


def _slices(recording: Recording, layer: int, heads: Iterable[int]) -> dict[int, Blob]:
    packed = {head: view.pack(view.row_arrays(recording, layer, head), layer, head) for head in heads}
    return {head: blob(data, f"{layer}/{head}") for head, data in packed.items()}


def _size(by_head: Mapping[int, Blob]) -> int:
    return sum(len(packed.text) for packed in by_head.values())
