"""Numbers and arrays that the budget explorer shows; `kvviz.generation.explore` computes all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from . import content, view

if TYPE_CHECKING:
    from ..generation.explore import Explored, Point, Slider

Array = NDArray[Any]
FRAME = ("positions", "groups", "scores", "weights", "looks", "marks")


def describe(
    explored: Explored, *, budgets: Sequence[int], sliders: Sequence[Slider], layers: Sequence[int]
) -> dict[str, Any]:
    """The page's content that does not depend on budget, sliders, layer and head; JSON-able."""
    from ..plots.theme import recorded_style  # plotly loads with it

    recording, method = explored.recording, explored.method
    rows = explored.indices.shape[0]
    styles = {theme: recorded_style(recording, theme == "dark")["color"] for theme in ("light", "dark")}
    return {
        "model": recording.model,
        "method": method.name,
        "title": method.title,
        "seed": method.config.get("seed"),
        "colours": styles,
        "tokens": content.texts(recording.tokens),
        "prompt_length": recording.prompt_length,
        "steps": recording.steps,
        "budgets": list(budgets),
        "sliders": [slider.described() for slider in sliders],
        "layers": list(layers),
        "heads": list(range(rows)),
        "head_name": "KV head" if rows == recording.geometry.n_kv_heads else "query head",
        "group_name": recording.group_name,
        "merges": content.merges([recording]),
        "notes": [],
    }


def numbers(explored: Explored, point: Point, oracle: Point, head: int) -> dict[str, Any]:
    """The numbers of one row (KV head or query head); JSON-able.

    `point` is the method's, `oracle` the oracle's at the same budget. `parts` are `kvviz.generation.explore.Parts` of
    the last step. Recall, mass and error are means over the steps; error and bytes are those of the whole layer.
    """
    ledger = explored.ledger
    return {
        "budget": point.budget,
        "recall": point.recall[head],
        "mass": point.attention_mass[head],
        "error": _finite(point.output_error),
        "oracle": {"recall": oracle.recall[head], "mass": oracle.attention_mass[head], "error": oracle.output_error},
        "parts": asdict(explored.parts[head]),
        "metadata_bytes": ledger.metadata_bytes,
        "extra_bytes": ledger.extra_bytes,
        "kept_bytes": sum(ledger.kept_bytes.values()),
    }


def curve_point(point: Point, head: int) -> list[float | None]:
    """[budget, mass, recall, error] of one row; JSON-able."""
    return [point.budget, point.attention_mass[head], point.recall[head], _finite(point.output_error)]


def arrays(explored: Explored, head: int) -> dict[str, Array]:
    """The tokens of one row at the last step, as js/slice.js reads them, and their map over all positions."""
    last = view.row_arrays(explored.recording, explored.layer, head, explored.recording.steps - 1)
    return {name: last[name] for name in (*FRAME, "offsets", "map_positions", "map_looks")}


def pack(explored: Explored, head: int) -> bytes:
    """`arrays` as the bytes of a safetensors file."""
    return view.pack(arrays(explored, head), explored.layer, head)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
