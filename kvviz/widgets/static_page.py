"""The stepper as one HTML file that replays a recording without a kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from ..trace import Recording
from . import content, view
from .page import blob, self_contained

SIZE_LIMIT = 8_000_000  # bytes of embedded slices, where `layers` are not named


class Shown(NamedTuple):
    """Where a page opens."""

    step: int
    layer: int
    head: int


def to_html(
    recording: Recording,
    shown: Shown,
    *,
    path: str | os.PathLike[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str:
    """The page as text; also written to `path`, whole or not at all.

    `layers` and `heads` say what is embedded; without `layers`, the one shown and as many others as fit in SIZE_LIMIT.
    Raises InvalidInputError for a layer or head that was not recorded.
    """
    wanted_heads = range(content.rows(recording)) if heads is None else heads
    embedded_heads = content.held("DecodeStepper.to_html: heads", wanted_heads, partial(content.check_head, recording))
    if shown.head not in embedded_heads:
        shown = shown._replace(head=embedded_heads[0])
    if layers is not None:
        wanted = content.held("DecodeStepper.to_html: layers", layers, partial(content.check_layer, recording))
        if shown.layer not in wanted:
            shown = shown._replace(layer=wanted[0])
        slices = {layer: _slices(recording, layer, embedded_heads) for layer in wanted}
    else:
        slices = _fitting(recording, shown.layer, embedded_heads)
    page = content.describe(recording) | {"layers": sorted(slices), "heads": embedded_heads}
    page["notes"] = _notes(recording, sorted(slices), embedded_heads)
    blobs = [tag for tags in slices.values() for tag in tags]
    return self_contained(recording.description, "stepper_page.js", {"page": page, **shown._asdict()}, blobs, path=path)


def _fitting(recording: Recording, first: int, heads: Sequence[int]) -> dict[int, list[str]]:
    """Slices of `first` and of other layers, always the one farthest from those already taken, up to SIZE_LIMIT."""
    slices = {first: _slices(recording, first, heads)}
    left = SIZE_LIMIT - _size(slices[first])
    while rest := set(recording.layers) - set(slices):
        layer = max(sorted(rest), key=lambda number: min(abs(number - taken) for taken in slices))
        tags = _slices(recording, layer, heads)
        left -= _size(tags)
        if left < 0:
            break
        slices[layer] = tags
    return slices


def _slices(recording: Recording, layer: int, heads: Iterable[int]) -> list[str]:
    packed = {head: view.pack(view.row_arrays(recording, layer, head), layer, head) for head in heads}
    return [blob(data, f"{layer}/{head}") for head, data in packed.items()]


def _size(tags: Iterable[str]) -> int:
    return sum(map(len, tags))


def _notes(recording: Recording, layers: list[int], heads: list[int]) -> list[str]:
    parts = []
    if len(layers) < len(recording.layers):
        parts.append(f"{_count('layer', layers)} of the {len(recording.layers)} recorded")
    if len(heads) < content.rows(recording):
        parts.append(f"{_count('head', heads)} of {content.rows(recording)}")
    return [f"This page holds {' and '.join(parts)}; to_html(layers=[…], heads=[…]) embeds others."] if parts else []


def _count(name: str, numbers: list[int]) -> str:
    return f"{name}{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
