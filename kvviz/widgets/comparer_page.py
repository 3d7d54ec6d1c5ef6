"""The comparer as one HTML file that needs no kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from . import content
from .comparer_content import numbered
from .page import blob, self_contained

if TYPE_CHECKING:
    from .method_comparer import MethodComparer


def to_html(
    comparer: MethodComparer,
    *,
    path: str | os.PathLike[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str:
    """The page as text; also written to `path`, whole or not at all. Arguments and errors: `MethodComparer.to_html`."""
    check, wanted_heads = comparer.common.check, range(comparer.common.heads) if heads is None else heads
    wanted_layers = [comparer.layer] if layers is None else layers
    held_layers = content.held("MethodComparer.to_html: layers", wanted_layers, partial(check, "layer"))
    held_heads = content.held("MethodComparer.to_html: heads", wanted_heads, partial(check, "head"))
    blobs = [
        blob(packed, f"{layer}/{head}/{number}")
        for layer in held_layers
        for head in held_heads
        for number, packed in enumerate(comparer.packed(layer, head))
    ]
    page = comparer.page | {"layers": held_layers, "heads": held_heads}
    page["notes"] = [*comparer.page["notes"], *_left_out(comparer, held_layers, held_heads)]
    data = {
        "page": page,
        "step": comparer.step,
        "sort": comparer.sort,
        "token": comparer.token,
        "layer": comparer.layer if comparer.layer in held_layers else held_layers[0],
        "head": comparer.head if comparer.head in held_heads else held_heads[0],
    }
    return self_contained(page["description"], "comparer_page.js", data, blobs, styles=["comparer.css"], path=path)


def _left_out(comparer: MethodComparer, layers: list[int], heads: list[int]) -> list[str]:
    parts = []
    if len(layers) < len(comparer.common.layers):
        parts.append(f"{numbered('layer', layers)} of the {len(comparer.common.layers)} compared")
    if len(heads) < comparer.common.heads:
        parts.append(f"{numbered('head', heads)} of {comparer.common.heads}")
    return [f"This page holds {' and '.join(parts)}; to_html(layers=[…], heads=[…]) embeds others."] if parts else []
