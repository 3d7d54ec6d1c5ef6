"""CentroidKV's schedules, constant merge ratios and chunk sizes, in all layers of several texts.

A pair is one layer of one text. Its output error is the mean over query heads and decode steps. The difference of a
row to CentroidKV's defaults is the mean over pairs; its interval is a 95 % bootstrap interval over pairs. Layers of one
text are not independent, so the intervals are rather too narrow.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .inputs import PROMPT_TOKENS, Layer, model, real_trace
from .markdown import table

TOKENS, BUDGETS = 2048, (256, 512, 1024)
STEPS, EVERY = 160, 16  # decode steps, with two merges; the error is measured at every 16th
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
    return {
        "tokens": TOKENS,
        "steps": STEPS,
        "every": EVERY,
        "texts": len(WINDOWS),
        "layers": len(layers),
        "rows": rows,
    }


def errors_by_layer(
    trace: Any, fields: dict[str, Any], budget: int, steps: int = STEPS, every: int = EVERY
) -> list[float]:  # fmt: skip
    """The mean output error of CentroidKV with these fields in each layer of a text, at every `every`th step."""
    import torch

    import kvviz

    method = kvviz.methods.create("centroidkv", budget=budget, **fields)
    with torch.no_grad():
        return [_error(Layer.of(trace, layer), method, steps, every) for layer in trace.layers]


def _error(layer: Layer, method: Any, steps: int, every: int) -> float:
    """The mean output error of one layer over query heads and the measured steps.

    Only some steps are measured, since exact attention and recording take most of the time of a replay.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from kvviz.metrics import output_error

    prompt, errors = layer.keys.shape[2] - steps, []
    for step, (state, queries) in enumerate(layer.steps(method, steps)):
        if step % every != every - 1:
            continue
        end, asked = prompt + step + 1, queries[:, :, None]
        attend = partial(scaled_dot_product_attention, scale=layer.context.scale, enable_gqa=True)
        exact = attend(asked, layer.keys[:, :, :end], layer.values[:, :, :end])
        chosen = method.select(state, queries)
        rows = chosen.indices[..., None].expand(-1, -1, -1, layer.keys.shape[-1])
        keys, values = layer.keys.gather(2, rows), layer.values.gather(2, rows)
        degree = torch.ones(chosen.indices.shape)
        if chosen.merged is not None:
            keys, values = torch.cat([keys, chosen.merged.keys], 2), torch.cat([values, chosen.merged.values], 2)
            degree = torch.cat([degree, chosen.merged.degree.float()], 2)
        bias = degree.log().repeat_interleave(queries.shape[1] // keys.shape[1], 1)[:, :, None]
        output = attend(asked, keys, values, attn_mask=bias)
        errors.append(float(output_error(output[0, :, 0].numpy(), exact[0, :, 0].numpy()).mean()))
    return sum(errors) / len(errors)


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
        f"tokens, the last {part['steps']} of them decoded, measured at every {part['every']}th step. The budget "
        "stands after each measure. The difference is paired with the defaults on the same layer and text, with a 95 % "
        "bootstrap interval over texts and layers.",
        table(head, rows),
    ])  # fmt: skip


def _cells(fields: dict[str, Any], numbers: dict[str, Any]) -> list[str]:
    low, high = numbers["interval"]
    difference = f"{numbers['difference']:+.3f} ({low:+.3f} to {high:+.3f})" if fields else ""
    return [f"{numbers['output_error']:.3f}", difference]
