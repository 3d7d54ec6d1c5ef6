"""PQCache's block cache: policies against cachetools, contents and moved bytes against sets of tokens."""

from __future__ import annotations

from collections import Counter

import cachetools
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.offload import BlockCache, KVStore, StepCache, background
from kvviz.offload.block_cache import BlockTable
from kvviz.offload.host import HostRows
from kvviz.offload.space import Space

BATCH, HEADS, DIM, SINKS, NEWEST = 2, 3, 5, 4, 8
TOKEN_BYTES = 2 * DIM * 4
ENGINES = {"lru": cachetools.LRUCache, "lfu": cachetools.LFUCache}


def use(cache, requested):
    """The same as `BlockTable.take` for one head, with cachetools; `requested` has the best block first."""
    present = [block for block in reversed(requested) if block in cache]
    absent = [block for block in reversed(requested) if block not in cache]
    for block in present:
        _ = cache[block]
    while len(cache) + len(absent) > cache.maxsize:
        cache.popitem()
    for block in absent:
        cache[block] = True


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    heads=st.sampled_from([1, 3, 64]),
    slots=st.integers(1, 9),
    most=st.integers(1, 9),
    blocks=st.integers(1, 30),
    policy=st.sampled_from(sorted(ENGINES)),
)
def test_each_head_holds_the_blocks_of_cachetools(seed, heads, slots, most, blocks, policy):
    generator = torch.Generator().manual_seed(seed)
    table, count = BlockTable(heads, slots, policy, torch.device("cpu")), min(most, slots, blocks)
    caches = [ENGINES[policy](slots) for _ in range(heads)]
    for _ in range(40):
        shares = torch.rand(blocks, generator=generator) ** 3  # some blocks are requested more often
        requested = torch.stack([torch.multinomial(shares + 1e-3, count, generator=generator) for _ in range(heads)])
        real_counts = torch.randint(0, count + 1, (heads, 1), generator=generator)
        requested[torch.arange(count) >= real_counts] = -1
        before = [set(row.tolist()) - {-1} for row in table.blocks]
        taken = table.take(requested)
        for head, cache in enumerate(caches):
            use(cache, [block for block in requested[head].tolist() if block >= 0])
            blocks_of_head = [block for block in table.blocks[head].tolist() if block >= 0]
            assert len(blocks_of_head) == len(set(blocks_of_head))
            assert set(blocks_of_head) == set(cache)
            inserted = set(taken.blocks[taken.heads == head].tolist())
            evicted = set(taken.gone[taken.heads == head].tolist()) - {-1}
            assert inserted == set(blocks_of_head) - before[head]
            assert evicted == before[head] - set(blocks_of_head)


def normal(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(BATCH, HEADS, count, DIM, generator=generator) for _ in range(2))


def offloaded(cache, prompt, budget=50, **fields):
    store = KVStore("host", cache, **fields).layer(lambda length: budget)
    store.append(*normal(prompt, 1))
    store.offload(newest=NEWEST, pinned=torch.arange(SINKS).expand(BATCH, -1))
    return store


class Reference:
    """The cache as sets of (sequence, head, position), one head at a time."""

    def __init__(self, cache, prompt):
        self.size, self.most = cache.block_size, cache.blocks_a_step
        slots = max(min(cache.capacity_tokens, prompt // 2) // cache.block_size, 1)
        self.most = min(self.most, slots)
        self.caches = {(b, h): ENGINES[cache.policy](slots) for b in range(BATCH) for h in range(HEADS)}
        self.retrieved = {}

    def held(self, head):
        return {block * self.size + i for block in self.caches[head] for i in range(self.size)}

    def step(self, head, positions, offloaded_tokens):
        """Hits and misses of one head's positions."""
        host_positions = [p for p in positions if SINKS <= p < offloaded_tokens]
        hits = [p for p in host_positions if p in self.held(head)]
        self.retrieved[head] = host_positions
        return len(hits), len(host_positions) - len(hits)

    def end(self, offloaded_tokens):
        """Number of tokens that are fetched after the step: those of the added blocks that it did not fetch itself."""
        filled = 0
        for head, positions in self.retrieved.items():
            before = self.held(head)
            counts = Counter(p // self.size for p in positions)
            full = [block for block in counts if (block + 1) * self.size <= offloaded_tokens]
            use(self.caches[head], sorted(full, key=lambda block: (-counts[block], block))[: self.most])
            filled += len({p for p in self.held(head) - before if p >= SINKS} - set(positions))
        self.retrieved = {}
        return filled


@pytest.mark.parametrize(
    ("cache", "prompt"),
    [
        (BlockCache(16, 4, 128), 400),
        (BlockCache(16, 4, 128, "lfu"), 400),
        (BlockCache(7, 3, 50, "lfu"), 333),
        (BlockCache(1, 20, 63), 100),
        (BlockCache(128, 32, 4096), 1000),
        (BlockCache(100, 5, 100), 63),
    ],
)
def test_hits_and_bytes_of_each_step(cache, prompt):
    """Some tokens are popular, and generated tokens leave the device too."""
    generator = torch.Generator().manual_seed(prompt)
    store, reference = offloaded(cache, prompt), Reference(cache, prompt)
    for step in range(150):
        store.append(*normal(1, step))
        shares = 1 / (1 + torch.arange(store.length).float()) ** 0.5
        count = min(40, store.length)
        indices = torch.stack(
            [torch.multinomial(shares, count, generator=generator).sort().values for _ in range(BATCH * HEADS)]
        ).view(BATCH, HEADS, count)
        offloaded_tokens, expected = store._pool.newest_start, [0, 0]
        for b in range(BATCH):
            for h in range(HEADS):
                hits, misses = reference.step((b, h), indices[b, h].tolist(), offloaded_tokens)
                expected = [expected[0] + hits + misses, expected[1] + misses]
        before = store.lookups, store.misses, store.moved_bytes
        store.fetch(indices, padded=False)
        assert [store.lookups - before[0], store.misses - before[1]] == expected
        assert store.moved_bytes - before[2] == expected[1] * TOKEN_BYTES
        before = store.filled_bytes, store.moved_bytes
        store.offload(newest=NEWEST)
        filled = reference.end(offloaded_tokens) * TOKEN_BYTES
        assert [store.filled_bytes - before[0], store.moved_bytes - before[1]] == [filled, filled]
    assert 0 < store.misses < store.lookups


@pytest.mark.parametrize("worker_bytes", [0, background.WORKER_BYTES])
def test_each_row_holds_one_token_within_the_bound(worker_bytes, monkeypatch):
    """The pool never grows; each row of the arena holds one token with the right bits."""
    monkeypatch.setattr(background, "WORKER_BYTES", worker_bytes)
    cache, budget, prompt = BlockCache(16, 4, 96, "lfu"), 30, 500
    store = offloaded(cache, prompt, budget=budget)
    rows = store._pool.rows.shape[0]
    arena = store._pool.arena
    assert arena.rows == BATCH * HEADS * (budget + 96)
    assert rows == arena.rows + BATCH * HEADS * (SINKS + store._pool.ring)
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        store.append(*normal(1, step))
        indices = (torch.rand(BATCH, HEADS, 30, generator=generator) * 200).long() + step
        indices = torch.stack([row.unique()[:20] for row in indices.flatten(0, 1)]).view(BATCH, HEADS, 20)
        store.fetch(indices, padded=False)
        store.offload(newest=NEWEST)
        store.wait()
        pool = store._pool
        assert pool.rows.shape[0] == rows
        places = (pool.slot_of >= 0).nonzero()[:, 0]
        slots = pool.slot_of[places].long()
        assert len(slots.unique()) == len(slots)
        copies = places[slots < arena.rows]
        assert torch.equal(pool.rows[pool.slot_of[copies].long()], store._lower.rows.rows[copies])


@pytest.mark.parametrize("padded", [True, False])
def test_a_step_with_more_tokens_than_rows_is_split(padded):
    store = offloaded(BlockCache(16, 4, 64), 400, arena_tokens=6)
    store.append(*normal(1, 0))
    indices = torch.arange(10, 60).expand(BATCH, 2 * HEADS, -1).clone()
    if padded:
        indices[0, 1, 20:] = -1
    parts = store.parts(indices)
    assert parts is not None
    expected = normal(400, 1)
    for part in parts:
        part_indices = indices[..., part]
        fetched = store.fetch(part_indices, padded=padded)
        assert torch.equal(fetched.slots < 0, part_indices < 0)
        for b in range(BATCH):
            for row in range(2 * HEADS):
                not_pad = part_indices[b, row] >= 0
                fetched_keys = fetched.keys[b, row // 2][fetched.slots[b, row][not_pad]]
                assert torch.equal(fetched_keys, expected[0][b, row // 2][part_indices[b, row][not_pad]])


def test_tokens_of_several_query_heads_count_once_and_pads_never():
    store = offloaded(StepCache(1), 400)
    store.append(*normal(1, 0))
    indices = torch.full((BATCH, 2 * HEADS, 5), -1)
    indices[:, :, :3] = torch.tensor([10, 20, 30])
    indices[1] = -1  # a sequence with an empty selection
    for repeat in (1, 2):
        store.fetch(indices)
        assert (store.lookups, store.misses) == (repeat * HEADS * 3, HEADS * 3)


@pytest.mark.parametrize("worker_bytes", [0, background.WORKER_BYTES])
def test_an_error_while_blocks_are_loaded_is_raised_at_the_next_step(worker_bytes, monkeypatch):
    monkeypatch.setattr(background, "WORKER_BYTES", worker_bytes)
    store = offloaded(BlockCache(16, 4, 64), 400)
    store.append(*normal(1, 0))
    indices = torch.arange(100, 120).expand(BATCH, HEADS, -1)
    store.fetch(indices, padded=False)

    def broken(*arguments):
        raise OSError("no such row")

    monkeypatch.setattr(store._lower.rows, "load", broken)
    store.offload(newest=NEWEST)
    store.append(*normal(1, 1))
    with pytest.raises(OSError, match="no such row"):
        store.fetch(indices, padded=False)


@pytest.mark.parametrize("count", [0, 1, 63, 1000, 3000])
@pytest.mark.parametrize("order", ["run", "gaps", "reversed"])
def test_rows_are_copied_to_any_slots(count, order):
    host_rows = HostRows(3, 2000, 6, torch.float32, Space("host", None, lambda: 1 << 40), pinned=False)
    host_rows.rows.copy_(torch.randn(6000, 6))
    places = torch.randperm(6000, generator=torch.Generator().manual_seed(count))[:count]
    slots = {
        "run": torch.arange(5, 5 + count),
        "gaps": torch.arange(count) * 2,
        "reversed": torch.arange(count).flip(0),
    }
    pool = torch.zeros(7000, 6)
    host_rows.load(places, pool, slots[order])
    expected = torch.zeros(7000, 6)
    expected[slots[order]] = host_rows.rows[places]
    assert torch.equal(pool, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockCache(block_size=0), "BlockCache: block_size: got 0; wanted an int >= 1"),
        (lambda: BlockCache(blocks_a_step=True), "BlockCache: blocks_a_step: got True"),
        (lambda: BlockCache(capacity_tokens=127), "BlockCache: capacity_tokens: got 127; wanted an int >= 128"),
        (lambda: BlockCache(policy="fifo"), "BlockCache: policy: got 'fifo'; wanted one of"),
        (lambda: StepCache(-1), "StepCache: recent_steps: got -1; wanted an int >= 0"),
        (lambda: KVStore("host", "lru"), "KVStore: cache: got 'lru'; wanted a StepCache, a BlockCache or None"),
    ],
)
def test_bad_fields_are_named(make, message):
    with pytest.raises(kvviz.InvalidInputError, match=message):
        make()
