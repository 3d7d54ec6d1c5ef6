"""Observations on queries, as in CTkvr's figure 2: their cosine by distance, and the overlap of their top-k keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from measures import SEED, Rows, measure, texts


@measure(tokens=96, count=2, k=8, pairs=40)
def ctkvr_queries(lm: Any, tokens: int = 2048, count: int = 3, k: int = 64, pairs: int = 400, every: int = 1) -> Rows:
    """Per text and each `every`-th layer: the queries' cosine by distance, and how their top-k keys overlap.

    `cosine_64` is the mean cosine at a distance of 64 tokens. `similar` and `different` are the mean overlap of the
    most and the least similar quarter of the pairs; `bound` is the share of pairs for which Theorem 1 promises any
    overlap, `sharper_bound` that of kvviz's own, `broken` the share whose overlap is below either.
    """
    import kvviz
    from kvviz import metrics

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids, layers=list(range(0, lm.geometry.n_layers, every)))
        distances = np.array([each for each in (1, 4, 16, 64, 256, 1024) if each < tokens])
        for layer in trace.layers:
            curve = metrics.similarity_by_distance(trace.queries[layer], distances).mean.mean(0)
            sampled = metrics.topk_overlap(trace.queries[layer], trace.keys[layer], k, pairs, SEED)
            low, high = np.quantile(sampled.cosine, (0.25, 0.75))
            rows.append({
                "text": text, "layer": layer,
                **{f"cosine_{distance}": float(cosine) for distance, cosine in zip(distances, curve, strict=True)},
                "correlation": metrics.linear_fit(sampled.cosine, sampled.overlap).correlation,
                "similar": float(sampled.overlap[sampled.cosine >= high].mean()),
                "different": float(sampled.overlap[sampled.cosine <= low].mean()),
                "unrelated": float((k / (sampled.first + 1)).mean()),
                **_bounds(trace, layer, sampled, k),
            })  # fmt: skip
    return rows


def _bounds(trace: Any, layer: int, pairs: Any, k: int, most: int = 32) -> dict[str, float]:
    """How often the bounds promise an overlap, and how often the measured one is below, over `most` of the pairs."""
    from kvviz import metrics

    chosen = np.linspace(0, len(pairs.head) - 1, most).astype(np.int64)
    bounds = np.array([
        [
            metrics.overlap_bound(
                trace.queries[layer][pairs.head[pair], pairs.first[pair]],
                trace.keys[layer][pairs.head[pair] // trace.geometry.group_size, : pairs.first[pair] + 1],
                k, pairs.cosine[pair], sharp=sharp,
            )
            for pair in chosen
        ]
        for sharp in (False, True)
    ])  # fmt: skip
    return {
        "bound": float((bounds[0] > 0).mean()), "sharper_bound": float((bounds[1] > 0).mean()),
        "broken": float((bounds > pairs.overlap[chosen] + 1e-9).mean()),
    }  # fmt: skip
