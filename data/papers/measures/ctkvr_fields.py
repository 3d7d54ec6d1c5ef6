"""CTkvr's parameters on captured traces: C, C', ρ, the choice of centroids, the update and the rerank."""

from __future__ import annotations

from typing import Any

import numpy as np

from measures import Rows, measure, texts

# One field at a time; the others keep their defaults, with the windows and without the update below.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "n_centroids": (8, 32, 128, 256, 512),
    "n_probes": (1, 2, 4, 8, 16),
    "list_ratio": (1.0, 2.5, 5.0),
    "choice": ("final", "equidistant", "random", "init"),
}
WINDOWS = {"sinks": 16, "recent": 16}  # the paper gives no sizes; kvviz's 64 and 64 would fill a small budget


@measure(tokens=120, count=2, steps=4, budget=48, centroids=16)
def ctkvr_fields(
    lm: Any, tokens: int = 2048, count: int = 3, steps: int = 16, budget: int = 256, centroids: int = 128,
    every: int = 1,
) -> Rows:  # fmt: skip
    """Per text and setting: recall, mass and output error over each `every`-th layer, α, and the time to choose.

    The last `steps` positions are the decode steps; no update, so that C stays what it is. `alpha` is the distinct
    share of the C'·ρ entries of the probed lists, `union` their number; `choose_ms` is the time per step and layer.
    """
    import kvviz

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        layers = range(0, lm.geometry.n_layers, every)
        trace, measured = kvviz.capture(lm, ids, layers=list(layers)), {}
        for field, values in SETTINGS.items():
            for value in values:
                fields = {**WINDOWS, "n_centroids": centroids, field: value}
                if fields["n_centroids"] > tokens - steps:
                    continue
                method = kvviz.methods.create("ctkvr", budget=budget, update=None, **fields)
                if (key := repr(method)) not in measured:  # the defaults occur in every field
                    measured[key] = played(trace, method, steps)
                rows.append({"text": text, "field": field, "value": str(value), **measured[key]})
    return rows


def played(trace: Any, method: Any, steps: int) -> dict[str, float]:
    """The means over steps and layers of a method's replay, with α and the size of the union."""
    from kvviz.generation.replaying import LayerReplay, record

    layers = [LayerReplay(trace, layer, method, steps) for layer in trace.layers]
    recording = record(trace, method, steps, layers)
    summary = recording.summary()
    alpha = float(np.mean([value for layer in layers for value in layer.cache.states[0].deduplication]))
    entries = method.n_probes * layers[0].cache.states[0].lists.shape[-1]
    return {
        **{name: summary[name] for name in ("recall", "attention_mass", "output_error", "attended_tokens")},
        "alpha": alpha, "union": alpha * entries, "list_length": layers[0].cache.states[0].lists.shape[-1],
        "choose_ms": 1e3 * float(np.median([events.select_s for events in recording.events.values()])),
    }  # fmt: skip
