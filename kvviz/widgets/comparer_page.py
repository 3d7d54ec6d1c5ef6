"""The comparer in a self-contained HTML file, which needs no kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from . import content, unions
from .comparer_content import Compared
from .page import Embedded, blob


def embedded(
    common: Compared,
    packed: Callable[[int, int, str], list[bytes]],
    shown: Mapping[str, Any],
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Embedded:
    """The comparer for a page. Other arguments and errors: `MethodComparer.to_html`.

    `packed` returns the columns of a layer, head and union; `shown` holds the traits with which the page opens.
    """
    check, chosen_heads = common.check, range(common.heads) if heads is None else heads
    chosen_layers = [shown["layer"]] if layers is None else layers
    page_layers = content.held("MethodComparer.to_html: layers", chosen_layers, partial(check, "layer"))
    page_heads = content.held("MethodComparer.to_html: heads", chosen_heads, partial(check, "head"))
    described = shown["page"]
    kinds, per_kv_head = described["unions"] if len(page_heads) == common.heads else [], described["per_kv_head"]
    answers = [
        (place.when(layer), {"slices": [
            blob(column, f"{place.key(layer)}/{number}")
            for number, column in enumerate(packed(layer, place.head, place.union))
        ]})
        for layer in page_layers
        for place in unions.places(page_heads, kinds, per_kv_head)
    ]  # fmt: skip
    notes = content.left_out(page_layers, len(common.layers), page_heads, common.heads, "compared")
    page = described | {"layers": page_layers, "heads": page_heads, "unions": kinds, "elsewhere": content.ELSEWHERE}
    page["notes"] = [*page["notes"], *notes]
    layer = shown["layer"] if shown["layer"] in page_layers else page_layers[0]
    head = shown["head"] if shown["head"] in page_heads else page_heads[0]
    union = shown["union"] if shown["union"] in kinds else unions.NONE
    head = unions.first_head(head, union, per_kv_head)
    state = {**shown, "page": page, "layer": layer, "head": head, "union": union}
    return Embedded("comparer", state, answers)
