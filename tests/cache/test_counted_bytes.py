"""Bytes moved by whole decode steps, the host's attention included, against those counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvviz
from kvviz.cache.accounting import ledger_of
from kvviz.cache.layer_cache import LayerCache
from kvviz.cache.tiers import make_store
from kvviz.methods.checks.counted_bytes import (
    N_HEADS,
    N_KV_HEADS,
    PROMPT,
    STEPS,
    CountedKVStore,
    Crossings,
    assert_moves_are_counted,
    random_tokens,
)
from kvviz.methods.checks.steps import CONTEXT, smallest

ON_HOST = ("ctkvr", "retrieval_attention")  # the host attends to what they retrieve
READ_KEYS = ("magicpig", "oracle")  # of tokens that need not be attended to
SEND = ("ctkvr", "oracle", "retrieval_attention")  # `Tensor.to` in a step, other than for prefetched metadata
OFFLOADED = [
    name
    for name in kvviz.methods.names()
    if kvviz.methods.get(name).kind != "quantised"  # stays on the device
    and not kvviz.methods.get(name)().drops_tokens
    and not kvviz.methods.get(name)().is_dense(CONTEXT.index)
]


@pytest.mark.parametrize("name", OFFLOADED)
def test_all_bytes_of_a_step_are_counted(name, monkeypatch):
    """Only some methods move more than the tokens that a step attends to, and the blocks."""
    method, counted, filled = smallest(kvviz.methods.get(name)), CountedKVStore(), []
    context = replace(CONTEXT, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS, details=False)
    store = make_store(counted, context, method)
    layer = LayerCache(context, method, store)
    queries, keys, values = random_tokens(PROMPT, seed=0)
    store.append(keys, values)
    layer.keep_queries(queries)
    layer.build()
    assert layer.states[0].length == PROMPT
    offload = store.offload

    def filling(newest, copied):
        before = counted.loaded_bytes
        offload(newest, copied=copied)
        store.wait()
        filled.append(counted.loaded_bytes - before)

    monkeypatch.setattr(store, "offload", filling)
    with Crossings() as crossings:
        for step in range(STEPS):
            queries, keys, values = random_tokens(1, seed=1 + step)
            store.append(keys, values)
            layer.prefetch()
            layer.decode(queries[:, :, 0])
            assert_moves_are_counted(name, store, counted.loaded_bytes + crossings.bytes, sum(filled))
        moved = crossings.bytes
        ledger_of([layer], ())
        assert crossings.bytes == moved, "the ledger moved what it only counts"
    attended = store.misses * store.token_bytes
    assert (attended > 0) == (name not in ON_HOST)
    assert (counted.loaded_bytes > attended + sum(filled)) == (name in READ_KEYS and name != "oracle")
    assert (crossings.bytes > store.prefetched_bytes) == (name in SEND)
    assert (sum(filled) > 0) == (store.prefetched_bytes > 0) == (name == "pqcache")
