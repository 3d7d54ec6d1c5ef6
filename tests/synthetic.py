"""A small recording with known contents, for plots and widgets; it needs neither model nor torch."""

from __future__ import annotations

import numpy as np

from kvviz.trace import Geometry, LayerEvents, Recording


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
