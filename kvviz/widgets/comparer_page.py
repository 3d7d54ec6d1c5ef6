"""The comparer as one HTML file that needs no kernel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from . import content
from .comparer_content import Compared
from .page import blob, self_contained


def to_html(
    common: Compared,
    packed: Callable[[int, int], list[bytes]],
    shown: Mapping[str, Any],
    *,
    path: str | os.PathLike[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> str:
    """The page as text; also written to `path`, whole or not at all. Other arguments, errors: `MethodComparer.to_html`.

    `packed` gives the columns of a layer and head; `shown` is the state in which the page opens, the widget's traits.
    """
    check, wanted_heads = common.check, range(common.heads) if heads is None else heads
    wanted_layers = [shown["layer"]] if layers is None else layers
    held_layers = content.held("MethodComparer.to_html: layers", wanted_layers, partial(check, "layer"))
    held_heads = content.held("MethodComparer.to_html: heads", wanted_heads, partial(check, "head"))
    answers = [
        ({"layer": layer, "head": head}, {"slices": [
            blob(column, f"{layer}/{head}/{number}") for number, column in enumerate(packed(layer, head))
        ]})
        for layer in held_layers
        for head in held_heads
    ]  # fmt: skip
    left_out = content.left_out(held_layers, len(common.layers), held_heads, common.heads, "compared")
    page = shown["page"] | {"layers": held_layers, "heads": held_heads}
    page["notes"] = [*page["notes"], *left_out]
    layer = shown["layer"] if shown["layer"] in held_layers else held_layers[0]
    head = shown["head"] if shown["head"] in held_heads else held_heads[0]
    state = {**shown, "page": page, "layer": layer, "head": head}
    return self_contained("comparer", page["description"], state, answers, path)
