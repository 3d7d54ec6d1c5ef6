"""CentroidKV's observations on keys: how similar they are, by distance, and the shape of that curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from measures import Rows, measure, texts

SHOWN = (1, 16, 64, 255)  # distances whose similarity is stored


@measure(tokens=320, count=2, local=255)
def centroidkv_keys(lm: Any, tokens: int = 2048, count: int = 3, local: int = 255) -> Rows:
    """Per text, layer and KV head: mean cosine of keys near and far apart, and the shape of the curve by distance.

    `near` is the mean over distances 1 to 16, `far` over those of at least a quarter of the text. Up to `local`, which
    is the longest distance within a chunk of 256, all distances count: `falling` is the rank correlation of similarity
    and distance, with the sign changed, `explained` the share of the curve's variance that a convex, non-increasing
    curve explains. A row with head −1 is the mean curve of the layer's heads, as in the paper's figure.
    """
    import kvviz
    from kvviz import metrics

    within = np.arange(1, local + 1)
    beyond = np.unique(np.linspace(tokens // 4, tokens - tokens // 8, 16).astype(int))
    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids)
        for layer in trace.layers:
            curves = metrics.similarity_by_distance(trace.keys[layer], within).mean  # [H, K]
            far = metrics.similarity_by_distance(trace.keys[layer], beyond).mean.mean(-1)  # [H]
            heads = [*enumerate(zip(curves, far, strict=True)), (-1, (curves.mean(0), far.mean()))]
            for head, (curve, distant) in heads:
                rows.append({
                    "text": text, "layer": layer, "head": head, "near": float(curve[:16].mean()), "far": float(distant),
                    "falling": -_rank_correlation(within, curve),
                    "explained": float(metrics.convex_fit(within, curve).explained),
                    **{f"at_{distance}": float(curve[distance - 1]) for distance in SHOWN if distance <= local},
                })  # fmt: skip
    return rows


def _rank_correlation(x: Any, y: Any) -> float:
    """Spearman's rank correlation."""
    from scipy.stats import spearmanr

    return float(spearmanr(x, y).statistic)
