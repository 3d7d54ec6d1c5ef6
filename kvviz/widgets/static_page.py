"""The stepper in a self-contained HTML file, which replays a recording without a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..trace import Recording
from . import content, unions, view
from .page import Blob, Embedded, blob

SIZE_LIMIT = 8_000_000  # bytes of embedded slices, unless `layers` are given


class Shown(NamedTuple):
    """The step, layer, and head or union of heads, with which a page opens."""

    step: int
    layer: int
    head: int
    union: str = unions.NONE


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
    kinds = described["unions"] if len(embedded_heads) == content.rows(recording) else []
    if shown.head not in embedded_heads:
        shown = shown._replace(head=embedded_heads[0])
    if shown.union not in kinds:
        shown = shown._replace(union=unions.NONE)
    shown = shown._replace(head=unions.first_head(shown.head, shown.union, described["per_kv_head"]))
    if layers is not None:
        chosen = content.held("DecodeStepper.to_html: layers", layers, partial(content.check_layer, recording))
        if shown.layer not in chosen:
            shown = shown._replace(layer=chosen[0])
        slices = {layer: _slices(recording, layer, embedded_heads, kinds) for layer in chosen}
    else:
        slices = _fitting(recording, shown.layer, embedded_heads, kinds)
    page = {**described, "layers": sorted(slices), "heads": embedded_heads, "unions": kinds}
    page["elsewhere"] = content.ELSEWHERE
    counts = len(recording.layers), content.rows(recording)
    left_out = content.left_out(sorted(slices), counts[0], embedded_heads, counts[1], "recorded")
    page["notes"] = [*described["notes"], *left_out]
    answers = [(when, {"slice": packed}) for of_layer in slices.values() for when, packed in of_layer]
    return Embedded("stepper", {"page": page, **shown._asdict(), "token": -1}, answers)


_Slices = list[tuple[dict[str, Any], Blob]]  # a slice with the traits that it answers


def _fitting(recording: Recording, first: int, heads: Sequence[int], kinds: Sequence[str]) -> dict[int, _Slices]:
    """Slices of `first` and of other layers, always the one farthest from those embedded, up to SIZE_LIMIT."""
    slices = {first: _slices(recording, first, heads, kinds)}
    left = SIZE_LIMIT - _size(slices[first])
    while rest := set(recording.layers) - set(slices):
        layer = max(sorted(rest), key=lambda number: min(abs(number - embedded) for embedded in slices))
        of_layer = _slices(recording, layer, heads, kinds)
        left -= _size(of_layer)
        if left < 0:
            break
        slices[layer] = of_layer
    return slices


def _slices(recording: Recording, layer: int, heads: Iterable[int], kinds: Sequence[str]) -> _Slices:
    return [
        (place.when(layer), blob(view.pack(unions.shown(recording, layer, place.head, place.union), layer, place.head),
                                 place.key(layer)))
        for place in unions.places(heads, kinds, content.rows(recording) // recording.geometry.n_kv_heads)
    ]  # fmt: skip


def _size(slices: _Slices) -> int:
    return sum(len(packed.text) for _, packed in slices)
