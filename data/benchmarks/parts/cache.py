"""Cache hit rates and bytes moved per step, with keys and values in host memory.

Each method selects once, on real keys; then the selected tokens are looked up and fetched, step by step, from stores
with different caches. The bytes are really moved. The papers' numbers are given for comparison; their models, texts and
lengths differ, so that only the order of magnitude and the ranking of the settings can be compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from .inputs import PROMPT_TOKENS, Layer, real_trace

LAYERS, STEPS = (3, 15, 28), 64
CLUSTER_TOKENS, CLUSTER_BUDGETS, RECENT_STEPS = 4096, (256, 512), (0, 1, 2, 4)
CLUSTER_PAPER = {"1": 0.63, "2": 0.74}  # ClusterKV, "Effectiveness of caching": 32k tokens of NarrativeQA, by R
BLOCK_TOKENS, BLOCK_BUDGET, CAPACITIES, BLOCKS_A_STEP = PROMPT_TOKENS, 0.1, (1024, 2048, 4096), (4, 8, 16, 32, 64)
BLOCK_PAPER = (0.5, 0.6)  # PQCache, section 4.3.2: HotpotQA, a tenth of the tokens, 4,096 in the cache


def run() -> dict[str, Any]:
    """Hit rates of tokens and of clusters, and bytes per step and layer, by method and cache."""
    import kvviz
    from kvviz.offload import BlockCache, StepCache

    clusters = []
    for budget in CLUSTER_BUDGETS:
        method = kvviz.methods.create("clusterkv", budget=budget, dense_layers=0)
        played = _played(real_trace(CLUSTER_TOKENS, LAYERS), method)
        for steps in RECENT_STEPS:
            numbers = _measured(played, StepCache(steps))
            clusters.append({"budget": budget, "recent_steps": steps, **numbers})
            print(f"clusterkv, budget {budget}, R={steps}: {numbers['hit_rate']:.2f}", flush=True)
    blocks = []
    played = _played(real_trace(BLOCK_TOKENS, LAYERS), kvviz.methods.create("pqcache", budget=BLOCK_BUDGET))
    for policy in ("lru", "lfu"):
        for capacity in CAPACITIES:
            for count in BLOCKS_A_STEP:
                cache = BlockCache(blocks_a_step=count, capacity_tokens=capacity, policy=policy)
                numbers = _measured(played, cache)
                blocks.append({"policy": policy, "capacity_tokens": capacity, "blocks_a_step": count, **numbers})
                print(f"pqcache, {policy}, {capacity} tokens, k={count}: {numbers['hit_rate']:.2f}", flush=True)
    step_cache = [{"recent_steps": steps, **_measured(played, StepCache(steps))} for steps in RECENT_STEPS]
    return {
        "layers": LAYERS, "steps": STEPS,
        "clusters": {"tokens": CLUSTER_TOKENS, "paper": CLUSTER_PAPER, "rows": clusters},
        "blocks": {
            "tokens": BLOCK_TOKENS, "budget": BLOCK_BUDGET, "paper": BLOCK_PAPER, "rows": blocks,
            "step_cache": step_cache,
        },
    }  # fmt: skip


class Played(NamedTuple):
    """A layer, and for every step the selected indices and groups, and the newest tokens that stay on the device."""

    layer: Layer
    method: Any
    steps: list[tuple[Any, Any, int]]


def _played(trace: Any, method: Any) -> list[Played]:
    """The tokens that the method selects in every layer."""
    import torch

    results = []
    with torch.no_grad():
        for index in trace.layers:
            layer = Layer.of(trace, index)
            layer.context = replace(layer.context, details=True)
            steps = []
            for state, queries in layer.steps(method, STEPS):
                selection = method.select(state, queries)
                steps.append((selection.indices, selection.groups, method.local_window(state)))
            results.append(Played(layer, method, steps))
    return results


def _measured(played: list[Played], cache: Any) -> dict[str, float]:
    """Means over layers and all steps (also the first ones, while the cache fills); bytes per step and layer."""
    stores = [_fetched(layer, cache) for layer in played]
    lookups, groups = (sum(getattr(store, name) for store in stores) for name in ("lookups", "group_lookups"))
    cells = len(stores) * STEPS
    return {
        "hit_rate": 1 - sum(store.misses for store in stores) / lookups,
        "group_hit_rate": 1 - sum(store.group_misses for store in stores) / groups,
        "sought_bytes": stores[0].token_bytes * lookups / cells,
        "fetched_bytes": sum(store.moved_bytes - store.filled_bytes for store in stores) / cells,
        "filled_bytes": sum(store.filled_bytes for store in stores) / cells,
    }


def _fetched(played: Played, cache: Any) -> Any:
    """The layer's store after it has fetched the tokens selected at every step."""
    import torch

    from kvviz.offload import KVStore

    layer, method, steps = played
    length = layer.keys.shape[2]
    store = KVStore("host", cache).layer(method.budget_tokens)
    store.reserve(layer.keys, layer.values, length)
    store.append(layer.keys[:, :, : length - STEPS], layer.values[:, :, : length - STEPS])
    store.offload(steps[0][2] - 1, torch.arange(method.sinks)[None])
    for position, (indices, groups, newest) in enumerate(steps, length - STEPS):
        store.append(layer.keys[:, :, position : position + 1], layer.values[:, :, position : position + 1])
        store.count_groups(indices, groups)
        for part in store.parts(indices) or [slice(None)]:
            store.fetch(indices[..., part])
        store.offload(newest)
    store.wait()
    return store
