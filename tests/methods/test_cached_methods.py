"""Methods with a cache of the device's copies: which one each has, the same results with any, and the hit rates."""

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
        made = kvviz.SelectiveCache(lm, kvviz.methods.create(name, budget=40), store=KVStore("host", cache))
        lm.generate(tiny_models.prompt(200), past_key_values=made, max_new_tokens=3, do_sample=False)
        return made.selective_layers[-1].store._pool.arena

    default = arena("pqcache")
    assert isinstance(default, BlockArena)
    assert default.rows == 2 * (40 + 128)  # one block: half of the prompt has no room for two
    assert isinstance(arena("clusterkv"), StepArena)
    assert isinstance(arena("clusterkv", BlockCache()), BlockArena)
    steps = arena("pqcache", StepCache(2))
    assert isinstance(steps, StepArena)
    assert steps.rows == 2 * 3 * 40


@pytest.fixture(scope="module")
def trace():
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")
    return kvviz.capture(lm, tiny_models.prompt(600))


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("name", ["pqcache", "clusterkv", "quest"])
def test_results_do_not_depend_on_the_cache(trace, name, policy):
    fields = {"budget": 64, "dense_layers": 0}
    wanted = kvviz.replay(trace, name, queries=80, **fields)
    kept = KVStore("host", BlockCache(16, 4, 96, policy), arena_tokens=150)
    found = kvviz.replay(trace, name, queries=80, store=kept, **fields)
    assert found.ledgers
    for layer, ledger in found.ledgers.items():
        for step in range(80):
            assert (found.indices(step, layer) == wanted.indices(step, layer)).all()
        assert (found.events[layer].output_error == wanted.events[layer].output_error).all()
        assert 0 < ledger.hit_rate < 1
        assert 0 < ledger.filled_bytes < ledger.moved_bytes


@pytest.mark.parametrize("recent_steps", [0, 1, 2])
def test_the_hit_rates_of_the_ledger(trace, recent_steps):
    """Of tokens and of clusters, from the recorded indices and groups alone."""
    sinks, fields = 16, {"budget": 100, "dense_layers": 0}
    kept = KVStore("host", StepCache(recent_steps))
    recording = kvviz.replay(trace, "clusterkv", queries=20, store=kept, tokens_per_cluster=10, **fields)
    device = kvviz.replay(trace, "clusterkv", queries=20, **fields).ledgers
    assert recording.ledgers.keys() == device.keys() == {0, 1, 2, 3}
    for layer, ledger in recording.ledgers.items():
        assert math.isnan(device[layer].hit_rate)
        assert math.isnan(device[layer].group_hit_rate)
        hits = lookups = group_hits = groups_in_all = 0
        for head in range(2):
            steps = []
            for step in range(20):
                indices, groups = recording.indices(step, layer)[head], recording.groups(step, layer)[head]
                steps.append({int(p): int(g) for p, g in zip(indices, groups, strict=True) if sinks <= p < 580})
            for step, sought in enumerate(steps):
                cached = set().union(*steps[max(0, step - recent_steps) : step]) if recent_steps else set()
                hits, lookups = hits + len(cached & set(sought)), lookups + len(sought)
                by_group = {g: {p for p in sought if sought[p] == g} for g in set(sought.values()) - {-1}}
                groups_in_all += len(by_group)
                group_hits += sum(members <= cached for members in by_group.values())
        assert ledger.hit_rate == pytest.approx(hits / lookups)
        assert ledger.group_hit_rate == pytest.approx(group_hits / groups_in_all)
        assert (0 < ledger.hit_rate < 1) == (0 < ledger.group_hit_rate < 1) == (recent_steps > 0)


def test_a_larger_cache_of_blocks_is_hit_more_often(trace):
    rates = []
    for capacity in (16, 64, 128, 512):
        kept = KVStore("host", BlockCache(16, 8, capacity))
        ledgers = kvviz.replay(trace, "pqcache", queries=60, store=kept, budget=64).ledgers
        rates.append(sum(ledger.hit_rate for ledger in ledgers.values()))
    assert all(low < high for low, high in pairwise(rates))
