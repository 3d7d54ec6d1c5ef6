"""What an edit costs: decode steps without one, with one that changes nothing, and with a pinned token, in turns."""

from __future__ import annotations

import statistics
from typing import Any

from .decode import BUDGET, STEPS, TURNS, Choosing, in_turns
from .inputs import MODEL, prose

TOKENS, METHODS = 2048, ("quest", "clusterkv")


def run() -> dict[str, Any]:
    """Median ratios of a step's time to that of a step without an edit, over turns, with their range."""
    import kvviz

    lm = kvviz.load(MODEL)
    return {"tokens": TOKENS, "budget": BUDGET, "turns": TURNS, **measured(lm, lm.encode(prose())[:, :TOKENS])}


def measured(lm: Any, ids: Any) -> dict[str, Any]:
    """The ratios by method, after a prompt of `ids` [1, L]."""
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, wait_for_states

    ids = ids.to(lm.device)
    edits = {"no edit": None, "an empty edit": kvviz.Edit(), "a pinned token": kvviz.pin(ids.shape[1] // 2)}
    ratios = {}
    with torch.no_grad(), attached(lm.model):
        base = SelectiveCache(lm.model, "full", retain_queries=True)
        fill(lm, base, ids[:, : -STEPS * TURNS])
        for name in METHODS:
            method = kvviz.methods.create(name, budget=min(BUDGET, ids.shape[1] // 4))
            caches = {label: base.fork(method, edit) for label, edit in edits.items()}
            for cache in caches.values():
                wait_for_states(cache)
            turns, _ = in_turns(lm, caches, ids[:, -STEPS * TURNS :], Choosing())
            plain = turns.pop("no edit")
            of_turns = {label: [ms / one for ms, one in zip(turns[label], plain, strict=True)] for label in turns}
            ratios[name] = {
                label: {"ratio": statistics.median(values), "range": [min(values), max(values)]}
                for label, values in of_turns.items()
            }
    return {"ratios": ratios}


def lines(part: dict[str, Any]) -> list[list[str]]:
    """The summary's line."""
    numbers = "; ".join(
        f"{name}: " + ", ".join(f"{label} {found['ratio']:.2f}" for label, found in ratios.items())
        for name, ratios in part["ratios"].items()
    )
    what = f"a step with an edit, as a share of one without, after {part['tokens']:,} tokens, budget {part['budget']}"
    return [[what, numbers]]
