"""Ablations: one field of a method changed at a time, on real keys.

Means over layers, heads and steps of one text, with one seed: small differences mean nothing.
"""

from __future__ import annotations

from typing import Any

from .inputs import real_trace
from .recall import measured

TOKENS, LAYERS, BUDGETS = 2048, (5, 15, 25), (256, 1024)
CONSTANT = {"ratio_step": 0.0}
# By method: the fields that differ from its defaults in each row.
ABLATIONS: dict[str, list[dict[str, Any]]] = {
    "clusterkv": [
        {}, {"metric": "l2"}, {"metric": "ip"}, {"tokens_per_cluster": 40}, {"tokens_per_cluster": 20},
        {"tokens_per_cluster": 10}, {"group": "max"},
    ],
    "centroidkv": [
        {}, {"chunk_size": 64}, {"chunk_size": 128}, {"chunk_size": None}, {"initial_ratio": 1.0, **CONSTANT},
        {"initial_ratio": 0.8, **CONSTANT}, {"initial_ratio": 0.8, "ratio_step": 0.1},
        {"initial_ratio": 0.8, "ratio_step": 0.3}, {"least_ratio": 0.05}, {"least_ratio": 0.4},
    ],
    "pqcache": [
        {}, {"n_partitions": 4}, {"n_partitions": 4, "n_bits": 8}, {"n_bits": 8}, {"max_iter": 1}, {"max_iter": 3},
        {"max_iter": 30}, {"sinks": 0}, {"sinks": 0, "recent_share": 0.0}, {"softmax": False},
    ],
    "ctkvr": [
        {}, {"choice": "init"}, {"choice": "random"}, {"choice": "equidistant"}, {"rerank": False}, {"update": None},
        {"n_probes": 1}, {"n_probes": 8}, {"sinks": 16, "recent": 16},
    ],
}  # fmt: skip


def run() -> dict[str, Any]:
    """Recall, attention mass and output error per row and budget."""
    import kvviz

    trace = real_trace(TOKENS, LAYERS)
    rows = []
    for name, variants in ABLATIONS.items():
        for fields in variants:
            numbers = {}
            for budget in BUDGETS:
                method = kvviz.methods.create(name, budget=budget, **{"dense_layers": 0, **fields})
                replayed = measured(trace, method)
                assert replayed is not None
                numbers[str(budget)] = {key: replayed[key] for key in ("recall", "attention_mass", "output_error")}
            rows.append({"method": name, "fields": fields, "budgets": numbers})
    return {"tokens": TOKENS, "layers": LAYERS, "rows": rows}
