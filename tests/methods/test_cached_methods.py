"""Methods with an offload cache on the device: the default cache of each, equal results with any, and hit rates."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

import kvviz
from kvviz.offload import BlockCache, KVStore, StepCache
from kvviz.offload.arena import StepArena
from kvviz.offload.block_cache import BlockArena
from tests import tiny_models


def test_each_method_has_the_cache_of_its_paper():
    def arena(name, cache=None):
        lm = tiny_models.make("llama")
        kvviz.attach(lm)
        selective = kvviz.SelectiveCache(lm, kvviz.methods.create(name, budget=40), store=KVStore("host", cache))
        lm.generate(tiny_models.prompt(200), past_key_values=selective, max_new_tokens=3, do_sample=False)
        return selective.selective_layers[-1].store._pool.arena

    default = arena("pqcache")
    assert isinstance(default, BlockArena)
    assert default.rows == 2 * (40 + 128)  # one block: two would not fit in half of the prompt
    assert isinstance(arena("clusterkv"), StepArena)
    assert isinstance(arena("clusterkv", BlockCache()), BlockArena)
    step_arena = arena("pqcache", StepCache(2))
    assert isinstance(step_arena, StepArena)
    assert step_arena.rows == 2 * 3 * 40


@pytest.fixture(scope="module")
def trace():
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")
    return kvviz.capture(lm, tiny_models.prompt(600))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("name", ["pqcache", "clusterkv", "quest"])
def test_results_do_not_depend_on_the_cache(trace, name, policy):
    fields = {"budget": 64, "dense_layers": 0}
    expected = kvviz.replay(trace, name, queries=80, **fields)
    store = KVStore("host", BlockCache(16, 4, 96, policy), arena_tokens=150)
    recording = kvviz.replay(trace, name, queries=80, store=store, **fields)
    assert recording.ledgers
    for layer, ledger in recording.ledgers.items():
        for step in range(80):
            assert (recording.indices(step, layer) == expected.indices(step, layer)).all()
        assert (recording.events[layer].output_error == expected.events[layer].output_error).all()
        assert 0 < ledger.hit_rate < 1
        assert ledger.filled_bytes < ledger.moved_bytes
        # Quest's pages are the cache's blocks: a step has fetched all tokens of the blocks that are added after it.
        assert (ledger.filled_bytes > 0) == (name != "quest")


@pytest.mark.parametrize("recent_steps", [0, 1, 2])
def test_the_hit_rates_of_the_ledger(trace, recent_steps):
    """Hit rates of tokens and of clusters, computed from the recorded indices and groups."""
    sinks, fields = 16, {"budget": 100, "dense_layers": 0}
    store = KVStore("host", StepCache(recent_steps))
    recording = kvviz.replay(trace, "clusterkv", queries=20, store=store, tokens_per_cluster=10, **fields)
    without_offload = kvviz.replay(trace, "clusterkv", queries=20, **fields).ledgers
    assert recording.ledgers.keys() == without_offload.keys() == {0, 1, 2, 3}
    for layer, ledger in recording.ledgers.items():
        assert math.isnan(without_offload[layer].hit_rate)
        assert math.isnan(without_offload[layer].group_hit_rate)
        hits = lookups = group_hits = group_lookups = 0
        for head in range(2):
            steps = []
            for step in range(20):
                indices, groups = recording.indices(step, layer)[head], recording.groups(step, layer)[head]
                chosen = zip(indices.tolist(), groups.tolist(), strict=True)
                steps.append({p: g for p, g in chosen if sinks <= p < 579})  # the prompt's last token stays
            for step, looked_up in enumerate(steps):
                cached = set().union(*steps[max(0, step - recent_steps) : step]) if recent_steps else set()
                hits, lookups = hits + len(cached & set(looked_up)), lookups + len(looked_up)
                by_group = {g: {p for p in looked_up if looked_up[p] == g} for g in set(looked_up.values()) - {-1}}
                group_lookups += len(by_group)
                group_hits += sum(members <= cached for members in by_group.values())
        assert ledger.hit_rate == pytest.approx(hits / lookups)
        assert ledger.group_hit_rate == pytest.approx(group_hits / group_lookups)
        assert (0 < ledger.hit_rate < 1) == (0 < ledger.group_hit_rate < 1) == (recent_steps > 0)


def test_a_larger_block_cache_has_a_higher_hit_rate(trace):
    rates = []
    for capacity in (16, 64, 128, 512):
        store = KVStore("host", BlockCache(16, 8, capacity))
        ledgers = kvviz.replay(trace, "pqcache", queries=60, store=store, budget=64).ledgers
        rates.append(sum(ledger.hit_rate for ledger in ledgers.values()))
    assert all(low < high for low, high in pairwise(rates))
