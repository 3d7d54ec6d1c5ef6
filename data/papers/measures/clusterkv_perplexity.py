"""ClusterKV, figure 10: perplexity after prompts of several lengths at one budget."""

from __future__ import annotations

import math
from typing import Any

from measures import Rows, measure, texts

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "clusterkv": ("clusterkv", {"dense_layers": 2}),
    "quest": ("quest", {"dense_layers": 2}),
    "infinigen": ("infinigen", {"dense_layers": 2}),
    "infinigen, top": ("infinigen", {"preset": "top", "dense_layers": 2}),
}


@measure(lengths=[96], count=2, tokens=4, budget=64)
def clusterkv_perplexity(
    lm: Any, lengths: tuple[int, ...] = (1024, 2048, 4096), count: int = 3, tokens: int = 64, budget: int = 256
) -> Rows:
    """Per length, text and method: perplexity of the `tokens` tokens after a prompt, fed one by one.

    The first two layers are dense in all methods, as in section V-A.
    """
    import torch

    import kvviz
    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill, next_logits

    rows = []
    for length in lengths:
        for text, ids in enumerate(texts(lm, length + tokens, count)):
            with torch.no_grad(), attached(lm.model):
                prompt = SelectiveCache(lm.model, "full", retain_queries=True)
                fill(lm, prompt, ids[:, : length - 1])
                for label, (name, fields) in METHODS.items():
                    chosen = fields if name == "full" else {**fields, "budget": budget}
                    cache = prompt.fork(kvviz.methods.create(name, **chosen))
                    cache.wait()
                    nats = 0.0
                    for position in range(length - 1, length + tokens - 1):
                        logits = next_logits(lm, cache, ids[:, position : position + 1]).float()
                        nats -= float(logits.log_softmax(-1)[ids[0, position + 1]])
                    perplexity = math.exp(nats / tokens)
                    rows.append({"length": length, "text": text, "method": label, "perplexity": perplexity})
    return rows
