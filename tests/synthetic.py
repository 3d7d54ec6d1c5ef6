"""A small recording and a small diagnosis, for plots and widgets; they need neither model nor torch."""

from __future__ import annotations

from itertools import product

import numpy as np

from kvviz.trace import Geometry, LayerEvents, Recording
from kvviz.trace.diagnosis import TABLES, Diagnosis
from kvviz.trace.outcomes import OUTCOMES
from kvviz.trace.score import Score
from kvviz.trace.styles import Style
from kvviz.trace.tables import to_column, to_table


def recording(
    *, prompt_length: int = 120, steps: int = 6, budget: int = 32, layers: tuple[int, ...] = (2, 3), heads: int = 2,
    n_clusters: int = 8, sinks: int = 4, tokens: list[str] | None = None, seed: int = 0,
) -> Recording:  # fmt: skip
    """A recording whose clusters are `position % n_clusters` and whose attention is a seeded softmax."""
    rng = np.random.default_rng(seed)
    length = prompt_length + steps
    words = tokens or [f" word{position}" for position in range(length)]
    slots = budget + steps
    events = {}
    for layer in layers:
        logits = rng.normal(size=(steps, heads, length)) * 3
        later = np.arange(length) > prompt_length + np.arange(steps)[:, None, None]
        logits = np.where(later, -np.inf, logits)
        attention = np.exp(logits - logits.max(-1, keepdims=True))
        attention /= attention.sum(-1, keepdims=True)
        indices = np.full((steps, heads, slots), -1, np.int32)
        groups = np.full_like(indices, -1)
        scores = np.full(indices.shape, np.nan, np.float32)
        for step in range(steps):
            for head in range(heads):
                cluster_order = rng.permutation(n_clusters)
                candidates = np.arange(sinks, prompt_length)
                ranked = np.concatenate([candidates[candidates % n_clusters == c] for c in cluster_order])
                chosen = np.sort(ranked[: budget - sinks])
                attended = np.r_[np.arange(sinks), chosen, np.arange(prompt_length, prompt_length + step + 1)]
                indices[step, head, : len(attended)] = attended
                middle = slice(sinks, sinks + len(chosen))
                groups[step, head, middle] = chosen % n_clusters
                rank = np.argsort(cluster_order)
                scores[step, head, middle] = (n_clusters - rank[chosen % n_clusters]).astype(np.float32)
        count = (indices >= 0).sum((1, 2))
        events[layer] = LayerEvents(
            indices=indices, groups=groups, scores=scores, attention=attention.astype(np.float32),
            merged=np.zeros((steps, heads), np.int32),
            output_error=rng.uniform(0.05, 0.3, steps).astype(np.float32),
            read_bytes=(count * 2 * 64 * 4).astype(np.int64), moved_bytes=np.zeros(steps, np.int64),
            select_s=np.full(steps, 1e-4, np.float32),
        )  # fmt: skip
    return Recording(
        method="clusterkv", title="ClusterKV", config={"seed": seed, "sinks": sinks, "recent": 0}, budget=budget,
        model="synthetic", geometry=Geometry(max(layers) + 1, 2 * heads, heads, 64, 4096),
        tokens=words[:length], token_ids=np.arange(length, dtype=np.int64),
        next_tokens=[*words[prompt_length + 1 : length], " end"],
        prompt_length=prompt_length, events=events, dense_layers=(0, 1), answer="word",
    )  # fmt: skip


def diagnosis(tokens: list[str] | None = None, *, per_query_head: bool = False, seed: int = 0) -> Diagnosis:
    """A diagnosis of Quest with random numbers: 3 of 4 layers, 2 KV heads, 6 steps, 3 evidence tokens, 60 in all."""
    rng = np.random.default_rng(seed)
    tokens = tokens or [f" word{at}" for at in range(60)]
    prompt, steps, layers, heads, group, places = 53, 6, (1, 2, 3), 2, 3, (10, 11, 40)
    rows = []
    rows_of_layer = range(heads * group if per_query_head else heads)
    for step, layer, row, place in product(range(steps), layers, rows_of_layer, places):
        rows.append({
            "step": step, "layer": layer, "head": row // group if per_query_head else row,
            "query_head": row if per_query_head else -1, "position": place,
            "stage": OUTCOMES[rng.integers(len(OUTCOMES))], "exact_weight": rng.random(), "weight": rng.random(),
            "score": rng.normal(), "rank": float(rng.integers(1, 50)), "cut": rng.normal(),
            "exact_rank": int(rng.integers(1, 50)), "group": int(rng.integers(9)),
            "group_rank": float(rng.integers(1, 9)), "group_cut": 4.0,
        })  # fmt: skip
    restored = [
        {"layer": layer, "head": head, "stage": stage, "logprob": rng.normal(), "answered": bool(rng.integers(2))}
        for layer, head in [(-1, -1), *product(layers, range(heads))] for stage in ("all", "grouping")
    ]  # fmt: skip
    chain = ("method", "trimming", "ranking", "grouping", "kept", "full")
    tables = {
        "evidence": [
            {"position": place, "logprob": cost, "pinned": cost / 2}
            for place, cost in zip(places, (0.5, 4.0, 2.0), strict=True)
        ],
        "losses": rows,
        "restored": restored,
        "waterfall": [
            {"stage": stage, "logprob": total}
            for stage, total in zip(chain, np.linspace(-9, -1, 6), strict=True)
        ],
        "control": [
            {"seed": seed, "layer": 1, "head": head, "logprob": 0.5 + seed, "answered": seed == 1}
            for seed in range(2) for head in range(2)
        ],
    }  # fmt: skip
    framed = {name: to_table(TABLES[name], listed) for name, listed in tables.items()}
    framed["evidence"].insert(1, "token", to_column([tokens[place] for place in places]))
    answer = tokens[57:]
    scores = {total: Score(np.full(3, total / 3), answer, np.full(3, total > -2)) for total in (-1.0, -9.0, -1.5)}
    return Diagnosis(
        method_name="quest", title="Quest", config={"budget": 20}, budget=20,
        stages=("kept", "grouping", "ranking", "trimming"), group_name="page",
        style=Style().completed("quest", "retrieval"), model="synthetic", geometry=Geometry(4, 6, 2, 16, 1024),
        tokens=tokens, token_ids=np.arange(60), prompt_length=prompt, question_length=4, full=scores[-1.0],
        method=scores[-9.0], smallest=((2, 1), (3, 0)), smallest_score=scores[-1.5],
        texts={"method": " wrong", "pinned": "".join(answer)}, passes=9, **framed,
    )  # fmt: skip
