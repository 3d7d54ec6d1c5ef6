"""Offloaded keys and values: fetched values, tokens that stay, and moved bytes, against sets and loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.cache.decoding import attend_selection
from kvviz.methods.selection import Selection
from kvviz.offload import BlockCache, DeviceStore, KVStore, StepCache
from kvviz.offload.offloaded_store import OFFLOAD_INTERVAL

BATCH, HEADS, DIM = 2, 3, 5


def normal(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(BATCH, HEADS, count, DIM, generator=generator) for _ in range(2))


def choose(length, rows, slots, generator, padded=False):
    """Distinct random positions for each row, ascending; if padded, some rows end in -1."""
    count = min(slots, length)
    picks = torch.stack(
        [torch.randperm(length, generator=generator)[:count].sort().values for _ in range(BATCH * rows)]
    ).view(BATCH, rows, count)
    if padded:
        picks[0, 0, count // 2 :] = -1
        picks[1, -1] = -1
    return picks


def values_at(fetched, indices):
    """Keys and values [B, R, S, D] of a fetch, 0 for pads."""
    share = indices.shape[1] // HEADS
    tensors = []
    for buffer in (fetched.keys, fetched.values):
        per_row = buffer.repeat_interleave(share, dim=1)
        rows = per_row.gather(2, fetched.slots.clamp(min=0)[..., None].expand(-1, -1, -1, DIM))
        tensors.append(rows.masked_fill(indices[..., None] < 0, 0.0))
    return tensors


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    cache=st.one_of(
        st.builds(StepCache, st.integers(0, 3)),
        st.builds(
            BlockCache,
            st.sampled_from([1, 5, 16]),
            st.integers(1, 4),
            st.sampled_from([16, 48]),
            st.sampled_from(["lru", "lfu"]),
        ),
    ),
    chunks=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    steps=st.lists(st.sampled_from(["heads", "queries", "padded"]), min_size=1, max_size=90),
    arena=st.sampled_from([None, 7, 40]),
    tier=st.sampled_from(["host", "disk"]),
)
def test_fetched_tokens_are_those_that_were_stored(seed, cache, chunks, steps, arena, tier):
    """Any order of prompts, steps and later prompts gives the same bits as a store on the device."""
    generator = torch.Generator().manual_seed(seed)
    kv_store = KVStore(tier, cache, arena_tokens=arena)
    store, device = kv_store.layer(lambda prompt: 20), DeviceStore()
    for chunk in chunks:
        new = normal(chunk, seed + device.length)
        for either in (store, device):
            either.append(*new)
        store.offload_chunk()
        assert torch.equal(store.keys, device.keys)
    later = normal(2, seed + 1)
    for either in (store, device):
        either.append(*later)
    pinned = torch.tensor([[0, 1], [1, 2]]).clamp(max=device.length - 1)
    store.offload(newest=seed % 12, pinned=pinned)
    for step, kind in enumerate(steps):
        new = normal(1, 7 * seed + step)
        for either in (store, device):
            either.append(*new)
        rows = 2 * HEADS if kind == "queries" else HEADS
        indices = choose(device.length, rows, 15, generator, padded=kind == "padded")
        for part in store.parts(indices) or [slice(None)]:
            part_indices = indices[..., part]
            fetched = values_at(store.fetch(part_indices, padded=kind == "padded"), part_indices)
            expected = values_at(device.fetch(part_indices), part_indices)
            assert torch.equal(fetched[0], expected[0])
            assert torch.equal(fetched[1], expected[1])
        store.offload(newest=(seed + step) % 12)
    assert torch.equal(store.keys, device.keys)
    assert torch.equal(store.values, device.values)
    read = store.read(indices)
    assert torch.equal(read[0][indices >= 0], device.read(indices)[0][indices >= 0])
    third = normal(3, seed)
    for either in (store, device):
        either.append(*third)
    assert torch.equal(store.values, device.values)
    assert torch.equal(store.last(3)[0], third[0])


def offloaded(prompt=400, **fields):
    store = KVStore("host", **fields).layer(lambda length: 50)
    store.append(*normal(prompt, 1))
    store.offload(newest=8, pinned=torch.arange(4).expand(BATCH, -1))
    return store


@pytest.mark.parametrize("recent_steps", [0, 1, 2, 3])
def test_tokens_of_the_last_steps_are_not_fetched_again(recent_steps):
    """Hits and misses of each step against sets of (sequence, head, position)."""
    generator = torch.Generator().manual_seed(recent_steps)
    store, history = offloaded(cache=StepCache(recent_steps)), []
    for step in range(40):
        store.append(*normal(1, step))
        indices = choose(200 + 5 * step, HEADS, 50, generator)
        before = store.lookups, store.misses, store.moved_bytes
        store.fetch(indices, padded=False)
        looked_up = {
            (b, h, p) for b in range(BATCH) for h in range(HEADS) for p in indices[b, h].tolist() if 4 <= p < 400 - 8
        }
        cached = set().union(*history[-recent_steps:]) if recent_steps else set()
        assert store.lookups - before[0] == len(looked_up)
        assert store.misses - before[1] == len(looked_up - cached)
        assert store.moved_bytes - before[2] == len(looked_up - cached) * 2 * DIM * 4
        history.append(looked_up)


def test_the_arena_never_exceeds_its_bound():
    """A step that needs more tokens than fit in the arena is computed in parts, with the same result."""
    generator = torch.Generator().manual_seed(0)
    small_store, device = offloaded(arena_tokens=6), DeviceStore()
    device.append(*normal(400, 1))
    rows = small_store._pool.rows.shape[0]
    assert rows == BATCH * HEADS * (6 + 4 + 8 + 2 * OFFLOAD_INTERVAL)
    queries = torch.randn(BATCH, 2 * HEADS, DIM, generator=generator)
    for step in range(5):
        for store in (small_store, device):
            store.append(*normal(1, step))
        for selection_heads in (HEADS, 2 * HEADS):
            indices = choose(400, selection_heads, 50, generator)
            assert len(small_store.parts(indices)) > 5
            outputs = [attend_selection(queries, store, Selection(indices), 0.4) for store in (small_store, device)]
            assert torch.allclose(*outputs, atol=1e-6)
    assert small_store._pool.rows.shape[0] == rows
    assert int((small_store._pool.arena._owner >= 0).sum()) <= small_store._pool.arena.rows == BATCH * HEADS * 6


def test_most_bytes_are_on_the_host():
    store = offloaded(prompt=4000)
    whole = BATCH * HEADS * 4000 * 2 * DIM * 4
    kept_bytes = store.kept_bytes()
    table = BATCH * HEADS * store._lower.rows.capacity * 4
    assert kept_bytes["device"] == store._pool.rows.numel() * 4 + table < 0.25 * whole
    assert whole <= kept_bytes["host"] < 1.3 * whole
    store.wait()
    assert torch.equal(store._lower.rows.range(0, 3992)[..., :DIM], normal(4000, 1)[0].flatten(0, 1)[:, :3992])


def test_generated_tokens_leave_the_device_too():
    store = offloaded()
    for step in range(1000):
        store.append(*normal(1, step))
        store.offload(newest=8)
    pool = store._pool
    assert pool.length - pool.newest_start < 8 + OFFLOAD_INTERVAL
    assert pool.ring == 8 + 2 * OFFLOAD_INTERVAL
    assert store._lower.rows.capacity > 1400, "the lower tier grows with the generated tokens"
    assert torch.equal(store.keys[:, :, -1:], normal(1, 999)[0])


def test_without_enough_host_memory_no_token_is_lost():
    kv_store = KVStore("host", limit_bytes=200_000)
    store = kv_store.layer(lambda length: 50)
    store.append(*normal(4000, 1))
    message = r"offload to host: got a request for 1,\d{3},\d{3} bytes, with 0 in use; wanted at most 200,000 bytes"
    with pytest.raises(kvviz.OutOfSpaceError, match=message):
        store.offload(newest=8)
    assert torch.equal(store.keys, normal(4000, 1)[0])
    small = kv_store.layer(lambda length: 50)
    small.append(*normal(100, 1))
    small.offload(newest=8)
    small.wait()
    assert kv_store._space.taken_bytes == small.kept_bytes()["host"]
    del small
    assert kv_store._space.taken_bytes == 0, "memory is freed with the store"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tier": "tape"}, "KVStore: tier: got 'tape'; wanted one of"),
        ({"cache": 2}, "KVStore: cache: got 2; wanted a StepCache, a BlockCache or None"),
        ({"arena_tokens": 0}, "KVStore: arena_tokens: got 0; wanted an int >= 1"),
        ({"limit_bytes": 1.5}, "KVStore: limit_bytes: got 1.5; wanted an int >= 1"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(kvviz.InvalidInputError, match=message):
        KVStore(**fields)
