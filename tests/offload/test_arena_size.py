"""The arena is sized for a step's budget: the hit rate holds while a long text is generated."""

from __future__ import annotations

from dataclasses import replace

import torch

from kvviz.cache.layer_cache import LayerCache
from kvviz.cache.tiers import make_store
from kvviz.methods.checks.steps import CONTEXT
from kvviz.methods.clusterkv import ClusterKV
from kvviz.offload import KVStore

STEPS, MARGIN = 900, 0.05


def tokens(count, generator):
    return tuple(torch.randn(1, heads, count, CONTEXT.head_dim, generator=generator) for heads in (4, 2, 2))


def hit_rates(store):
    """Hit rates of the two halves of the steps; queries change slowly, as those of a text do."""
    generator = torch.Generator().manual_seed(0)
    method = ClusterKV(budget=128, tokens_per_cluster=16, decode_interval=64)
    context = replace(CONTEXT, n_heads=4, n_kv_heads=2, details=False)
    layer = LayerCache(context, method, make_store(store, context, method))
    queries, keys, values = tokens(1200, generator)
    layer.store.append(keys, values)
    layer.build()
    query, halves, before = queries[:, :, -1], [], (0, 0)
    for step in range(STEPS):
        fresh, keys, values = tokens(1, generator)
        query = 0.95 * query + (1 - 0.95**2) ** 0.5 * fresh[:, :, 0]
        layer.store.append(keys, values)
        layer.decode(query)
        if step in (STEPS // 2 - 1, STEPS - 1):
            misses, lookups = layer.store.misses - before[0], layer.store.lookups - before[1]
            before = layer.store.misses, layer.store.lookups
            halves.append(1 - misses / lookups)
    return halves


def test_the_hit_rate_does_not_decay():
    """The second half's rate is at most 0.05 below the first's, with as many places as a step attends to tokens."""
    first, second = hit_rates(KVStore("host"))
    assert first > 0.4, "consecutive steps attend to the same clusters"
    assert second > first - MARGIN


def test_a_smaller_arena_has_a_lower_rate():
    """The test above can fail: an arena for a quarter of the budget does not hold what a step attends to."""
    rates = hit_rates(KVStore("host"))
    assert sum(hit_rates(KVStore("host", arena_tokens=32))) / 2 < sum(rates) / 2 - MARGIN
