"""Build times: seconds to build each method's state on one real layer, and their growth with the prompt.

The layer has 3 KV heads and 9 query heads of 64 channels. Builds run one after another in the main thread; in a model
they may overlap with the prefill.
"""

from __future__ import annotations

import inspect
import math
import re
import statistics
import time
from collections.abc import Callable
from typing import Any

from .inputs import PROMPT_TOKENS, Layer, configurations, real_trace
from .spread import cheaper_from, exponents

LAYER, LENGTHS, RUNS, BUDGET = 15, (2048, 4096, 8192), 3, 512
CROSSING_LENGTHS, CROSSING_RUNS = (1024, 2048, 4096, 8192), 5
KMEANS_TOKENS, INDEX_TOKENS, FIXED_CLUSTERS = 80, 16, 400  # tokens per cluster in each paper; the published number
LIST_LENGTH = 1280  # 2.5 · 512, CTkvr's


def run() -> dict[str, Any]:
    """Medians in seconds by method and length, growth exponents, stated operations; and k-means against the index."""
    import torch

    layer = Layer.of(real_trace(PROMPT_TOKENS, (LAYER,)), LAYER)
    rows = []
    with torch.no_grad():
        for configuration in configurations(presets_of=()):
            method = configuration.create(budget=BUDGET)
            prompts = {length: layer.first(length).stored() for length in LENGTHS}
            # Lengths take turns, so that a slow moment of the machine affects all of them.
            calls = {length: _building(prompt, method) for length, prompt in prompts.items()}
            times = in_turns(calls, RUNS)
            seconds = [statistics.median(times[length]) for length in LENGTHS]
            rows.append({
                "label": configuration.label, "operations": stated_operations(type(method)), "seconds": seconds,
                "exponents": exponents(LENGTHS, seconds),
            })  # fmt: skip
            print(f"{configuration.label}: {', '.join(f'{1e3 * value:.1f} ms' for value in seconds)}", flush=True)
        crossing = _crossing(layer)
    return {"layer": LAYER, "lengths": LENGTHS, "runs": RUNS, "budget": BUDGET, "rows": rows, "crossing": crossing}


def stated_operations(method: Any) -> str:
    """The operation count in the first paragraph of the docstring of a method's `build`, or else that paragraph."""
    text = inspect.cleandoc(method.build.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    _, semicolon, operations = text.partition("; ")
    if semicolon:
        return operations.rstrip(".")
    bound = re.search(r"O\(.*\)", text)
    return bound.group() if bound else text.rstrip(".")


def in_turns(calls: dict[Any, Callable[[], Any]], runs: int) -> dict[Any, list[float]]:
    """Seconds of each call in each of `runs` rounds, after one warm-up round."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for run in range(runs + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if run:
                times[name].append(time.perf_counter() - started)
    return times


def _building(prompt: Layer, method: Any) -> Callable[[], Any]:
    return lambda: prompt.build(method)


def _crossing(layer: Layer) -> dict[str, Any]:
    """ClusterKV's k-means compared with CTkvr's index: first with the C of each paper, then with the same C."""
    settings: dict[str, Callable[[int], tuple[int, int]]] = {
        "C as each prescribes (L/80, L/16)": lambda length: (math.ceil(length / KMEANS_TOKENS), length // INDEX_TOKENS),
        "both C = L/80": lambda length: (math.ceil(length / KMEANS_TOKENS),) * 2,
        "both C = L/16": lambda length: (length // INDEX_TOKENS,) * 2,
        f"both C = {FIXED_CLUSTERS}": lambda length: (FIXED_CLUSTERS,) * 2,
    }
    return {
        "lengths": CROSSING_LENGTHS,
        "settings": {name: _race(layer, clusters) for name, clusters in settings.items()},
    }


def _race(layer: Layer, clusters: Callable[[int], tuple[int, int]]) -> dict[str, Any]:
    from kvviz.clustering import kmeans
    from kvviz.clustering.query_centroids import query_centroids

    def calls(length: int) -> dict[str, Callable[[], Any]]:
        prompt, (n_clusters, n_centroids) = layer.first(length), clusters(length)
        return {
            "kmeans": lambda: kmeans(prompt.keys, n_clusters, metric="cosine", max_iter=50),
            "index": lambda: query_centroids(
                prompt.queries, prompt.keys, n_centroids=n_centroids, list_length=min(LIST_LENGTH, length),
                scale=prompt.context.scale,
            ),
        }  # fmt: skip

    times = [in_turns(calls(length), CROSSING_RUNS) for length in CROSSING_LENGTHS]
    medians = {name: [statistics.median(each[name]) for each in times] for name in ("kmeans", "index")}
    return {
        "clusters": [clusters(length) for length in CROSSING_LENGTHS],
        "seconds": medians,
        "exponents": {name: exponents(CROSSING_LENGTHS, seconds) for name, seconds in medians.items()},
        "index_cheaper_from": cheaper_from(CROSSING_LENGTHS, medians["index"], medians["kmeans"]),
    }
