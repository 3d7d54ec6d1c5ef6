"""Milliseconds a token on SmolLM2 at 8,192 tokens, methods in turns of some steps, and their ratio to `full`.

"no attention" attends and chooses nothing in any layer: what is left is the model's own work, which no method can save.
The share of choosing is that of `extend` and `select` together. On a CPU both float32, kvviz's default there, and
bfloat16, in which the model is published, are measured. A CPU's exact attention may be slow in bfloat16, so that times
are compared with the fastest `full` of all dtypes too.
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
    """Adds up the seconds that layers take to choose."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, layer: Any, queries: Any, selection: Any, output: Any, select_s: float) -> None:
        """Note what one layer took."""
        self.seconds += select_s


def run() -> dict[str, Any]:
    """Medians by dtype; a ratio is the median of each turn's own, that to the fastest `full` is of medians."""
    import torch

    cuda = torch.cuda.is_available()
    dtypes = (torch.bfloat16,) if cuda else (torch.float32, torch.bfloat16)
    by_dtype = {str(dtype).removeprefix("torch."): _measured("cuda" if cuda else "cpu", dtype) for dtype in dtypes}
    fastest = min(found["ms_a_token"]["full"] for found in by_dtype.values())
    for found in by_dtype.values():
        found["ratio_to_fastest_full"] = {name: ms / fastest for name, ms in found["ms_a_token"].items()}
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
                    layer.decode = lambda queries: queries  # as wide as an output
                elif not layer.dense:
                    layer.observer = choosing
        for turn in range(TURNS):
            for name, cache in caches.items():
                times, chose = [], []
                for step in range(turn * STEPS, (turn + 1) * STEPS):
                    choosing.seconds, started = 0.0, time.perf_counter()
                    lm.model(ids[:, step : step + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
                    synchronize()
                    times.append(time.perf_counter() - started)
                    chose.append(choosing.seconds / times[-1])
                if name in shares:
                    shares[name].append(statistics.median(chose[1:]))
                turns[name].append(statistics.median(times[1:]))  # the first finds another method's data in the caches
    ratios = {name: [mine / full for mine, full in zip(turns[name], turns["full"], strict=True)] for name in turns}
    return {
        "ms_a_token": {name: 1e3 * statistics.median(values) for name, values in turns.items()},
        "ratio_to_full": {name: statistics.median(values) for name, values in ratios.items()},
        "choosing_share": {name: statistics.median(values) for name, values in shares.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
    }
