"""Numbers and arrays that the budget explorer shows; `kvviz.generation.explore` computes all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from . import content, unions, view

if TYPE_CHECKING:
    from ..generation.explore import Explored, Point, Slider

Array = NDArray[Any]
CurvePoint = list[float | None]
FRAME: tuple[str, ...] = ("positions", "groups", "scores", "weights", "looks", "marks")


def describe(
    explored: Explored, *, budgets: Sequence[int], sliders: Sequence[Slider], layers: Sequence[int]
) -> dict[str, Any]:
    """The page's content that does not depend on budget, sliders, layer and head; JSON-able."""
    from ..plots.theme import recorded_style  # plotly loads with it

    recording, method = explored.recording, explored.method
    rows = explored.indices.shape[0]
    styles = {theme: recorded_style(recording, theme == "dark")["color"] for theme in ("light", "dark")}
    return unions.describe([recording], rows) | {
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
        "windows": content.windows(recording.geometry),
        "notes": content.window_notes(recording.geometry),
    }


def numbers(explored: Explored, point: Point, oracle: Point, rows: range) -> dict[str, Any]:
    """The numbers of one row (KV head or query head), or of several as one; JSON-able.

    `point` is the method's, `oracle` the oracle's at the same budget. `parts` are `kvviz.generation.explore.Parts` of
    the last step. Recall, mass and error are means over the steps, and recall and mass over the rows too; error and
    bytes are those of the whole layer.
    """
    ledger, names = explored.ledger, ("budget", "mass", "recall", "error")
    own, best = (dict(zip(names, curve_point(each, rows), strict=True)) for each in (point, oracle))
    return own | {
        "oracle": {name: best[name] for name in names[1:]},
        "parts": asdict(explored.union_parts(rows)),
        "metadata_bytes": ledger.metadata_bytes,
        "extra_bytes": ledger.extra_bytes,
        "kept_bytes": sum(ledger.kept_bytes.values()),
    }


def curve_point(point: Point, rows: range) -> CurvePoint:
    """[budget, mass, recall, error] of one row, or the means over several; JSON-able."""
    mass, recall = (fmean(values[row] for row in rows) for values in (point.attention_mass, point.recall))
    return [point.budget, mass, recall, _finite(point.output_error)]


def arrays(explored: Explored, rows: range, union: str) -> dict[str, Array]:
    """The tokens at the last step, of one row or of a union's, as js/slice.js reads them, and their map."""
    recording, last = explored.recording, explored.recording.steps - 1
    if union == unions.NONE:
        found, names = view.row_arrays(recording, explored.layer, rows[0], last), FRAME
    else:
        found = unions.arrays(recording, explored.layer, rows, union, last)
        names = (*FRAME, *unions.COUNTS, "union")
    return {name: found[name] for name in (*names, "offsets", "map_positions", "map_looks")}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
