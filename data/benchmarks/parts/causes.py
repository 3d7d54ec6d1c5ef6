"""Why some of the four systems find fewer needles than Quest at their papers' settings: other settings, and merging.

The needles are the first ones of the part `needle`. The docstrings of methods quote these numbers.
"""

from __future__ import annotations

from typing import Any

from .inputs import Layer, model, prose, real_trace
from .needle import BUDGETS, NEW_TOKENS, SEED, TOKENS, summed
from .needle import COUNT as EVERY

COUNT = 8  # needles, those in the first half of their contexts
WIDE = {"choice": "equidistant", "n_probes": 16, "sinks": 16, "recent": 16}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ctkvr": ("ctkvr", {}),
    "ctkvr, equidistant": ("ctkvr", {"choice": "equidistant"}),
    "ctkvr, 16 probes": ("ctkvr", {"n_probes": 16}),
    "ctkvr, no update": ("ctkvr", {"update": None}),
    "ctkvr, 16 sinks and 16 recent": ("ctkvr", {"sinks": 16, "recent": 16}),
    "ctkvr, equidistant, 16 probes, 16 sinks and 16 recent": ("ctkvr", WIDE),
    "clusterkv, L/40": ("clusterkv", {"tokens_per_cluster": 40}),
    "clusterkv, L/20": ("clusterkv", {"tokens_per_cluster": 20}),
}
PROMPT, STEPS, LAYERS, MERGED_BUDGETS, HEAVY = 2016, 32, (5, 15, 25), (256, 1024), 16


def run() -> dict[str, Any]:
    """Needles found by other settings, and the loss of logits by merging."""
    import kvviz
    from kvviz.tasks import needle_samples

    samples = needle_samples(model(), prose(), count=EVERY, tokens=TOKENS, seed=SEED)[:COUNT]
    labelled = {
        label: kvviz.methods.create(name, budget=BUDGETS[0], **fields) for label, (name, fields) in VARIANTS.items()
    }
    tables = [
        kvviz.compare(
            model(), s.context, labelled, (), s.question, s.answer, max_new_tokens=NEW_TOKENS, recordings=False
        )
        for s in samples
    ]
    trace = real_trace(PROMPT + STEPS, LAYERS)
    merging = [
        {"budget": budget, "layer": layer, **_shortfall(Layer.of(trace, layer), budget)}
        for budget in MERGED_BUDGETS
        for layer in LAYERS
    ]
    return {"samples": COUNT, "budget": BUDGETS[0], "rows": summed(tables), "prompt": PROMPT, "merging": merging}


def _shortfall(layer: Layer, budget: int) -> dict[str, float]:
    """The mean loss of logit of the heaviest merged tokens when a centroid replaces them, and the largest degree."""
    import torch

    import kvviz

    method = kvviz.methods.create("centroidkv", budget=budget)
    prompt = layer.first(PROMPT)
    prompt.context = kvviz.methods.LayerContext(**{**vars(layer.context), "details": True})
    merged = method.merged(prompt.build(method))
    members = merged.members[0].long()[:, None]  # [H, 1, L]
    end = PROMPT - method.recent
    falls = []
    for step in range(PROMPT, PROMPT + STEPS):
        step_queries = layer.queries[0, :, step].unflatten(0, (members.shape[0], -1)) * layer.context.scale  # [H, G, D]
        logits, stand_ins = step_queries @ prompt.keys[0].mT, step_queries @ merged.keys[0].mT
        heavy = logits[..., method.sinks : end].topk(HEAVY, dim=-1).indices + method.sinks  # [H, G, 16]
        centroids = members.expand_as(logits).gather(-1, heavy)
        falls.append(logits.gather(-1, heavy) - stand_ins.gather(-1, centroids))
    return {"shortfall": float(torch.stack(falls).mean()), "largest_degree": int(merged.degree.max())}
