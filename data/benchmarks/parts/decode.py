"""Decode times: milliseconds per token on SmolLM2 at 8,192 tokens, with methods in turns, and their ratio to `full`.

"no attention" neither selects nor attends in any layer: what remains is the model's other work, which no method can
reduce. The share of selecting includes `extend` and `select`. On a CPU float32 (kvviz's default) and bfloat16 (the
model's published dtype) are measured. Since exact attention may be slow in bfloat16 on a CPU, times are also compared
with the fastest `full` of all dtypes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from .end_to_end import synchronize
from .inputs import MODEL, PROMPT_TOKENS, SYSTEMS, prose

BUDGET, STEPS, TURNS = 512, 9, 10
METHODS = (*SYSTEMS, "quest", "streaming_llm")
FLOOR = "no attention"


class Choosing:
    """An observer that adds up the seconds that layers take to select."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, layer: Any, queries: Any, selection: Any, output: Any, select_s: float) -> None:
        """Add the seconds of one layer."""
        self.seconds += select_s


def run() -> dict[str, Any]:
    """Medians by dtype. A ratio is the median over turns; the ratio to the fastest `full` is one of medians."""
    import torch

    cuda = torch.cuda.is_available()
    dtypes = (torch.bfloat16,) if cuda else (torch.float32, torch.bfloat16)
    by_dtype = {str(dtype).removeprefix("torch."): _measured("cuda" if cuda else "cpu", dtype) for dtype in dtypes}
    fastest = min(numbers["ms_a_token"]["full"] for numbers in by_dtype.values())
    for numbers in by_dtype.values():
        numbers["ratio_to_fastest_full"] = {name: ms / fastest for name, ms in numbers["ms_a_token"].items()}
    return {
        "prompt_tokens": PROMPT_TOKENS - STEPS * TURNS,
        "budget": BUDGET,
        "steps_a_turn": STEPS - 1,
        "turns": TURNS,
        "dtypes": by_dtype,
    }


def _measured(device: str, dtype: Any) -> dict[str, Any]:
    """Milliseconds, ratios and shares by method."""
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, wait_for_states

    lm = kvviz.load(MODEL, device=device, dtype=dtype)
    ids = lm.encode(prose())[:, : PROMPT_TOKENS - STEPS * TURNS].to(lm.device)
    chosen = [kvviz.methods.create(name, budget=BUDGET) for name in METHODS if name in kvviz.methods.names()]
    turns: dict[str, list[float]] = {name: [] for name in ("full", FLOOR, *(method.name for method in chosen))}
    shares: dict[str, list[float]] = {method.name: [] for method in chosen}
    with torch.no_grad(), attached(lm.model):
        retain_queries = any(method.needs_queries for method in chosen)
        base = SelectiveCache(lm.model, "full", retain_queries=retain_queries)
        fill(lm, base, ids)
        caches = {"full": base.fork("full"), FLOOR: base.fork("streaming_llm")}
        caches |= {method.name: base.fork(method) for method in chosen}
        choosing = Choosing()
        for name, cache in caches.items():
            wait_for_states(cache)
            for layer in cache.selective_layers:
                if name == FLOOR:
                    layer.decode = lambda queries: queries  # has the shape of an output
                elif not layer.dense:
                    layer.observer = choosing
        for turn in range(TURNS):
            for name, cache in caches.items():
                times, shares_of_steps = [], []
                for step in range(turn * STEPS, (turn + 1) * STEPS):
                    choosing.seconds, started = 0.0, time.perf_counter()
                    lm.model(ids[:, step : step + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
                    synchronize()
                    times.append(time.perf_counter() - started)
                    shares_of_steps.append(choosing.seconds / times[-1])
                if name in shares:
                    shares[name].append(statistics.median(shares_of_steps[1:]))
                turns[name].append(statistics.median(times[1:]))  # at the first, caches hold another method's data
    ratios = {name: [ms / full for ms, full in zip(turns[name], turns["full"], strict=True)] for name in turns}
    return {
        "ms_a_token": {name: 1e3 * statistics.median(values) for name, values in turns.items()},
        "ratio_to_full": {name: statistics.median(values) for name, values in ratios.items()},
        "choosing_share": {name: statistics.median(values) for name, values in shares.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
    }
