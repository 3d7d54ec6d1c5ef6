"""Selection times in a decode step, their growth with the cache, and operation counts.

Operations are counted as shares of the cost of exact scores for all tokens: L·D MACs per query head, over a tensor of
H·L·D numbers. Work outside torch (faiss) is not counted.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from .inputs import PROMPT_TOKENS, Layer, configurations, real_trace
from .spread import exponents

LAYER, LENGTHS, STEPS, BUDGET = 15, (2048, 4096, 8192), 32, 512


def run() -> dict[str, Any]:
    """Medians of `select` in seconds by method and length, growth exponents, counted operations at each length."""
    import torch

    layer = Layer.of(real_trace(PROMPT_TOKENS, (LAYER,)), LAYER)
    rows = []
    with torch.no_grad():
        for configuration in configurations(presets_of=()):
            method = configuration.create(budget=BUDGET)
            by_length = [_measured(layer.first(length), method) for length in LENGTHS]
            seconds = [numbers["seconds"] for numbers in by_length]
            rows.append({
                "label": configuration.label, "seconds": seconds, "exponents": exponents(LENGTHS, seconds),
                **{name: [numbers[name] for numbers in by_length] for name in by_length[0] if name != "seconds"},
            })  # fmt: skip
            print(f"{configuration.label}: {', '.join(f'{1e6 * value:.0f} us' for value in seconds)}", flush=True)
    return {"layer": LAYER, "lengths": LENGTHS, "steps": STEPS, "budget": BUDGET, "rows": rows}


def _measured(layer: Layer, method: Any) -> dict[str, float]:
    """Median seconds of the steps, and the operations of the last step."""
    from notebooks.operations import counted

    times = []
    for state, queries in layer.steps(method, STEPS):
        started = time.perf_counter()
        method.select(state, queries)
        times.append(time.perf_counter() - started)
    counts = counted(lambda: method.select(state, queries))
    heads, length, dim = layer.queries.shape[1], layer.keys.shape[2], layer.keys.shape[3]
    return {
        "seconds": statistics.median(times),
        "macs_share": counts.macs / (heads * length * dim),
        "largest_operand_share": counts.largest_operand / layer.keys.numel(),
        "largest_copy_share": counts.largest_copy / layer.keys.numel(),
    }
