"""Milliseconds a token on SmolLM2 at 8,192 tokens, methods in turns of some steps, and their ratio to `full`."""

from __future__ import annotations

import statistics
import time
from typing import Any

from .end_to_end import synchronize
from .inputs import PROMPT_TOKENS, SYSTEMS, model, prose

BUDGET, STEPS, TURNS = 512, 9, 10
METHODS = (*SYSTEMS, "quest", "streaming_llm")


def run() -> dict[str, Any]:
    """Medians over turns; the ratio is the median of each turn's own ratio."""
    import torch

    import kvviz
    from kvviz.generation import fill, wait_for_states
    from kvviz.hf import SelectiveCache, attached

    lm = model("cuda" if torch.cuda.is_available() else "cpu")
    ids = lm.encode(prose())[:, : PROMPT_TOKENS - STEPS * TURNS].to(lm.device)
    chosen = [kvviz.methods.create(name, budget=BUDGET) for name in METHODS if name in kvviz.methods.names()]
    turns: dict[str, list[float]] = {name: [] for name in ("full", *(method.name for method in chosen))}
    with torch.no_grad(), attached(lm.model):
        retain_queries = any(method.needs_queries for method in chosen)
        base = SelectiveCache(lm.model, "full", retain_queries=retain_queries)
        fill(lm, base, ids)
        caches = {"full": base.fork("full")} | {method.name: base.fork(method) for method in chosen}
        for cache in caches.values():
            wait_for_states(cache)
        for turn in range(TURNS):
            for name, cache in caches.items():
                times = []
                for step in range(turn * STEPS, (turn + 1) * STEPS):
                    started = time.perf_counter()
                    lm.model(ids[:, step : step + 1], past_key_values=cache, use_cache=True, logits_to_keep=1)
                    synchronize()
                    times.append(time.perf_counter() - started)
                turns[name].append(statistics.median(times[1:]))  # the first finds another method's data in the caches
    ratios = {name: [mine / full for mine, full in zip(turns[name], turns["full"], strict=True)] for name in turns}
    return {
        "prompt_tokens": ids.shape[1],
        "budget": BUDGET,
        "steps_a_turn": STEPS - 1,
        "turns": TURNS,
        "ms_a_token": {name: 1e3 * statistics.median(values) for name, values in turns.items()},
        "ratio_to_full": {name: statistics.median(values) for name, values in ratios.items()},
        "ratio_range": {name: [min(values), max(values)] for name, values in ratios.items()},
    }
