"""The comparer in a self-contained HTML file, which needs no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from . import content
from .comparer_content import Compared
from .page import Embedded, blob


def embedded(
    common: Compared,
    packed: Callable[[int, int], list[bytes]],
    shown: Mapping[str, Any],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Embedded:
    """The comparer for a page. Other arguments and errors: `MethodComparer.to_html`.

    `packed` returns the columns of a layer and head; `shown` holds the traits with which the page opens.
    """
    check, chosen_heads = common.check, range(common.heads) if heads is None else heads
    chosen_layers = [shown["layer"]] if layers is None else layers
    page_layers = content.held("MethodComparer.to_html: layers", chosen_layers, partial(check, "layer"))
    page_heads = content.held("MethodComparer.to_html: heads", chosen_heads, partial(check, "head"))
    answers = [
        ({"layer": layer, "head": head}, {"slices": [
            blob(column, f"{layer}/{head}/{number}") for number, column in enumerate(packed(layer, head))
        ]})
        for layer in page_layers
        for head in page_heads
    ]  # fmt: skip
    notes = content.left_out(page_layers, len(common.layers), page_heads, common.heads, "compared")
    page = shown["page"] | {"layers": page_layers, "heads": page_heads}
    page["notes"] = [*page["notes"], *notes]
    layer = shown["layer"] if shown["layer"] in page_layers else page_layers[0]
    head = shown["head"] if shown["head"] in page_heads else page_heads[0]
    state = {**shown, "page": page, "layer": layer, "head": head}
    return Embedded("comparer", state, answers)
