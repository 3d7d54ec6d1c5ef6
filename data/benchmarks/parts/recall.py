"""Recall, attention mass, output error and cost of each method on real keys.

The reference is the same for all methods: the B tokens with the largest exact attention weights, mean over the query
heads of a KV head, where B is the budget of the step (the budget, plus one for each token since the prompt). Recall is
|I ∩ top-B| / B, where I is the set of tokens that any query head of the KV head attends to; B is the same even if a
method attends to fewer tokens. A merged token counts by its `metrics.merged_share`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Container
from typing import Any

from . import inputs
from .inputs import PROMPT_TOKENS, Configuration, configurations, real_trace
from .spread import over_seeds_and_windows

TOKENS, LAYERS, STEPS, BUDGET = 4096, (3, 8, 15, 22, 28), 64, 256
SEEDS = (0, 1, 2)
WINDOWS = tuple(range(0, 3 * PROMPT_TOKENS, PROMPT_TOKENS))  # where each window starts in the prose
BUDGETS = (128, 256, 512, 1024)
BY_BUDGET = ("oracle", "clusterkv", "quest", "streaming_llm")  # on the first window
# (better, worse): the expected order of attention masses, for any text
ORDERS = (("clusterkv", "quest"), ("quest", "streaming_llm"), ("ctkvr", "quest"))


def run(methods: Container[str] | None = None) -> dict[str, Any]:
    """Means over windows, layers, heads, steps and seeds; minimum and maximum over seeds and over windows.

    `methods` names the methods to measure, without the curves by budget; by default all.
    """
    import kvviz

    traces = {start: real_trace(TOKENS, LAYERS, start) for start in WINDOWS}
    rows, left_out = [], {}
    for configuration in configurations(methods=methods):
        try:
            row = _row(configuration, traces)
        except kvviz.InvalidInputError as error:
            left_out[configuration.label] = str(error)
            continue
        if row is None:
            left_out[configuration.label] = "attends to all tokens"
        else:
            rows.append(row)
            print(f"{row['label']}: recall {row['recall']['mean']:.3f}, {row['replay_s']:.1f} s per replay", flush=True)
    return {
        "tokens": TOKENS, "layers": LAYERS, "steps": STEPS, "budget": BUDGET, "windows": WINDOWS, "rows": rows,
        "left_out": left_out, "orders_of_mass": orders(rows),
        "methods": _by_budget(traces[WINDOWS[0]]) if methods is None else {},
    }  # fmt: skip


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The old results with the newly measured rows."""
    results = inputs.merged(old, new)
    return results | {"orders_of_mass": orders(results["rows"])}


def orders(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Whether the results have each expected order of attention masses, if both methods were measured."""
    masses = {row["label"]: row["attention_mass"]["mean"] for row in rows}
    return {
        f"{better} > {worse}": masses[better] > masses[worse]
        for better, worse in ORDERS
        if {better, worse} <= masses.keys()
    }


def measured(trace: Any, method: Any) -> dict[str, float] | None:
    """The metrics of one replay, means over layers, heads and steps; None if no layer selects.

    Bytes are per layer (all KV heads together) and token of the trace, in float32.
    """
    import kvviz

    started = time.perf_counter()
    recording = kvviz.replay(trace, method, queries=STEPS)
    replay_s = time.perf_counter() - started
    if not recording.layers:
        return None
    cells = [(step, layer) for layer in recording.layers for step in range(recording.steps)]
    events, kept = recording.events.values(), recording.ledgers.values()
    return {
        "recall": statistics.fmean(float(recall_of_budget(recording, *cell).mean()) for cell in cells),
        "attention_mass": statistics.fmean(float(recording.attention_mass(*cell).mean()) for cell in cells),
        "output_error": statistics.fmean(float(layer.output_error.mean()) for layer in events),
        "attended_tokens": statistics.fmean(float(recording.attended_tokens(*cell).mean()) for cell in cells),
        "merged_tokens": statistics.fmean(float(layer.merged.mean()) for layer in events),
        "metadata_bytes": statistics.fmean(ledger.metadata_bytes for ledger in kept) / len(trace),
        "auxiliary_bytes": statistics.fmean(ledger.auxiliary_bytes for ledger in kept) / len(trace),
        "extra_share": statistics.fmean(ledger.extra_share for ledger in kept),
        "replay_s": replay_s,
    }


def recall_of_budget(recording: Any, step: int, layer: int) -> Any:
    """Share of the step's top-B tokens that were attended to, by KV head [H]; B is the budget of the step."""
    import numpy as np

    from kvviz import metrics

    length = recording.visible(step)
    attended = metrics.member_mask(recording.indices(step, layer), length)  # [R, L]
    chosen = np.maximum(attended, recording.merged_share(step, layer))
    weights = recording.attention(step, layer)  # [R, L], of one query head each where R = Q
    heads = recording.geometry.n_kv_heads
    chosen = chosen.reshape(heads, -1, length).max(1)
    weights = weights.reshape(heads, -1, length).mean(1)
    on_top = step + 1 if recording.config.get("generated") == "on_top" else 0
    best = metrics.member_mask(metrics.top_tokens(weights, recording.budget + on_top), length)
    return (chosen * best).sum(-1) / best.sum(-1)


def _row(configuration: Configuration, traces: dict[int, Any]) -> dict[str, Any] | None:
    """The configuration on all windows, with all seeds if it has one."""
    seeds = SEEDS if configuration.seeded else SEEDS[:1]
    cells: dict[tuple[int, int], dict[str, float]] = {}
    for seed in seeds:
        seed_field = {"seed": seed} if configuration.seeded else {}
        for start, trace in traces.items():
            numbers = measured(trace, configuration.create(budget=BUDGET, dense_layers=0, **seed_field))
            if numbers is None:
                return None
            cells[seed, start] = numbers
    names = next(iter(cells.values()))
    spread = {name: over_seeds_and_windows({key: cell[name] for key, cell in cells.items()}) for name in names}
    with_spread = ("recall", "attention_mass", "output_error")
    return {
        "label": configuration.label,
        "method": configuration.name,
        "seeds": len(seeds),
        **{name: spread[name] if name in with_spread else spread[name]["mean"] for name in names},
    }


def _by_budget(trace: Any) -> dict[str, Any]:
    """Recall, attention mass and output error of a few methods at several budgets."""
    import kvviz

    table: dict[str, Any] = {}
    for name in BY_BUDGET:
        for budget in BUDGETS:
            numbers = measured(trace, kvviz.methods.create(name, budget=budget, dense_layers=0))
            assert numbers is not None
            table.setdefault(name, {})[str(budget)] = {
                key: numbers[key] for key in ("recall", "attention_mass", "output_error")
            }
    return table
