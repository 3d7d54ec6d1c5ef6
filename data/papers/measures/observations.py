"""Observations on queries and keys: importance over steps and pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from measures import Rows, measure, texts


@measure(tokens=96, count=2, steps=16, top=8, page_size=4, sinks=4, recent=8)
def importance_and_pages(
    lm: Any, tokens: int = 2048, count: int = 3, steps: int = 64, top: int = 64, page_size: int = 16,
    sinks: int = 16, recent: int = 64,
) -> Rows:  # fmt: skip
    """Per text, layer and KV head: important tokens per page, and how unimportant an important token becomes.

    The last `steps` positions are the decode steps. Sinks and recent window are left out, which every method keeps.
    `worst_rank` is the median, over the tokens among the `top` at some step, of their worst rank at any step.
    """
    import kvviz
    from kvviz import metrics

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        trace = kvviz.capture(lm, ids)
        positions = np.arange(tokens - steps, tokens)
        for layer in trace.layers:
            weights = metrics.attention_weights(trace.queries[layer], trace.keys[layer], positions, scale=trace.scale)
            candidates = weights[..., sinks : tokens - steps - recent]  # [H, T, N], which all steps attend to
            for head, of_head in enumerate(candidates):
                ranks = metrics.token_ranks(of_head)  # [T, N]
                important = (ranks < top).any(0)
                pages = metrics.page_fragmentation(metrics.top_tokens(of_head, top), of_head.shape[-1], page_size)
                rows.append({
                    "text": text, "layer": layer, "head": head, "worst_rank": float(np.median(ranks.max(0)[important])),
                    "tokens_per_page": float(pages.tokens_per_page.mean()),
                    "median_tokens_per_page": float(np.median(pages.tokens_per_page)),
                    "wasted": float(pages.wasted.mean()),
                })  # fmt: skip
    return rows
