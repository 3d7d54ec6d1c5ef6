"""CentroidKV's schedules, constant merge ratios and chunk sizes, in all layers of several texts.

A pair is one layer of one text. Its output error is the mean over query heads and decode steps. The difference of a
row to CentroidKV's defaults is the mean over pairs; its interval is a 95 % bootstrap interval over pairs. Layers of one
text are not independent, so the intervals are rather too narrow.
"""

from __future__ import annotations

from typing import Any

from .inputs import PROMPT_TOKENS, model, real_trace
from .markdown import table

TOKENS, BUDGETS = 2048, (256, 512, 1024)
STEPS = 160  # two merges while decoding
WINDOWS = tuple(range(0, 3 * PROMPT_TOKENS, PROMPT_TOKENS))  # where each text starts in the prose
# The fields that differ from the defaults in each row: schedule "floor", r from 0.8 down to 0.2, chunks of 256 tokens.
VARIANTS: list[dict[str, Any]] = [
    {}, {"schedule": "cyclic"}, {"schedule": "overshoot"}, {"schedule": "literal"},
    {"initial_ratio": 1.0, "ratio_step": 0.0}, {"initial_ratio": 0.9, "ratio_step": 0.0},
    {"initial_ratio": 0.8, "ratio_step": 0.0}, {"chunk_size": 64}, {"chunk_size": 128}, {"chunk_size": None},
]  # fmt: skip


def run() -> dict[str, Any]:
    """Output error per row and budget, and its paired difference to the defaults."""
    layers = tuple(range(model().geometry.n_layers))
    errors: dict[tuple[int, int], list[float]] = {}  # by row and budget, one per pair
    for start in WINDOWS:
        trace = real_trace(TOKENS, layers, start)
        for row, fields in enumerate(VARIANTS):
            for budget in BUDGETS:
                errors.setdefault((row, budget), []).extend(errors_by_layer(trace, fields, budget))
            print(f"text at {start}, {fields or 'defaults'}", flush=True)
    rows = [
        {
            "fields": fields,
            "budgets": {str(budget): compared(errors[row, budget], errors[0, budget]) for budget in BUDGETS},
        }
        for row, fields in enumerate(VARIANTS)
    ]
    return {"tokens": TOKENS, "steps": STEPS, "texts": len(WINDOWS), "layers": len(layers), "rows": rows}


def errors_by_layer(trace: Any, fields: dict[str, Any], budget: int) -> list[float]:
    """The mean output error of CentroidKV with these fields in each layer of a text."""
    import kvviz

    recording = kvviz.replay(trace, kvviz.methods.create("centroidkv", budget=budget, **fields), queries=STEPS)
    return [float(recording.events[layer].output_error.mean()) for layer in recording.layers]


def compared(errors: list[float], defaults: list[float]) -> dict[str, Any]:
    """The mean error of the pairs, the mean difference to the defaults on the same pairs, and its interval."""
    import numpy as np

    from kvviz.metrics import bootstrap_interval

    differences = np.subtract(errors, defaults)
    interval = list(bootstrap_interval(differences))
    return {"output_error": float(np.mean(errors)), "difference": float(differences.mean()), "interval": interval}


def each(part: dict[str, Any]) -> str:
    """A table with one row per changed field."""
    budgets = list(part["rows"][0]["budgets"])
    head = ["fields", *(f"{name}, {budget}" for budget in budgets for name in ("output error", "difference"))]
    rows = [
        [", ".join(f"{name}={value}" for name, value in row["fields"].items()) or "defaults"]
        + [cell for budget in budgets for cell in _cells(row["fields"], row["budgets"][budget])]
        for row in part["rows"]
    ]
    return "\n\n".join([
        f"Output error of `centroidkv` in all {part['layers']} layers, {part['texts']} texts of {part['tokens']:,} "
        f"tokens, the last {part['steps']} of them decoded. The budget stands after each measure. The difference is "
        "paired with the defaults on the same layer and text, with a 95 % bootstrap interval over texts and layers.",
        table(head, rows),
    ])  # fmt: skip


def _cells(fields: dict[str, Any], numbers: dict[str, Any]) -> list[str]:
    low, high = numbers["interval"]
    difference = f"{numbers['difference']:+.3f} ({low:+.3f} to {high:+.3f})" if fields else ""
    return [f"{numbers['output_error']:.3f}", difference]
