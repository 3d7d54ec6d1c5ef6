"""PQCache's cache on the device: whole blocks of tokens, with the least used making room for the most wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .arena import Arena, Filling, StepArena, check_at_least

Policy = Literal["lru", "lfu"]
POLICIES: tuple[Policy, ...] = ("lru", "lfu")
USE_BITS = 40  # of an int64 for the time of the last use, below the number of uses


@dataclass(frozen=True)
class BlockCache:
    """Whole blocks of `block_size` tokens stay on the device, `capacity_tokens` a KV head.

    After each step the `blocks_a_step` blocks (k_cache) that hold most of the tokens which the step retrieved are taken
    in, and by `policy` the least recently ("lru") or least frequently used ("lfu") make room. Source: PQCache (arXiv
    2407.12820), sections 3.4, 4.1.4 and 4.3.2; the defaults are its own.

    Deviations: the capacity is at most half of the prompt; no more blocks are taken in than fit (the paper shows that
    the hit rate falls there), none without a retrieved token, and none before all its tokens are offloaded. The device
    has room for what one step fetches besides.

    Raises InvalidInputError for a value out of range.
    """

    block_size: int = 128
    blocks_a_step: int = 32
    capacity_tokens: int = 4096
    policy: Policy = "lru"

    def __post_init__(self) -> None:
        check_at_least("BlockCache", self, block_size=1, blocks_a_step=1)
        check_at_least("BlockCache", self, capacity_tokens=self.block_size)
        if self.policy not in POLICIES:
            raise InvalidInputError("BlockCache: policy", repr(self.policy), f"one of {POLICIES}")

    def arena(self, heads: int, budget: int, prompt: int, arena_tokens: int | None, device: torch.device) -> Arena:
        """The arena of a layer of `heads` heads in all; each fetches at most `budget` tokens at once.

        The blocks are at most half of the prompt, and at least one: with all of it, nothing would be offloaded.
        """
        tokens = min(budget, prompt) if arena_tokens is None else arena_tokens
        slots = max(min(self.capacity_tokens, prompt // 2) // self.block_size, 1)
        return BlockArena(heads, heads * tokens, slots, self, device)


class Taken(NamedTuple):
    """Blocks that came into the cache: heads, slots, the blocks, and those they replaced (-1: none), each [n]."""

    heads: Tensor
    slots: Tensor
    blocks: Tensor
    gone: Tensor


class BlockTable:
    """Which blocks each head has in its `slots`, and which one goes when another comes; all heads at once.

    `blocks` [heads, slots] holds the blocks' numbers, -1 where a slot is empty.
    """

    def __init__(self, heads: int, slots: int, policy: Policy, device: torch.device) -> None:
        self.policy = policy
        self.blocks = torch.full((heads, slots), -1, dtype=torch.int64, device=device)
        self._uses = torch.zeros_like(self.blocks)  # since the block came
        self._used = torch.zeros_like(self.blocks)  # when last: all blocks of a step differ
        self._time = 0

    def take(self, wanted: Tensor) -> Taken:
        """Use the blocks `wanted` [heads, k], the best first, -1 pads, k at most the slots; those absent come in.

        First the present ones are used, from the worst to the best; then as many blocks go as the absent ones need,
        by the least used, where that is equal by the least recently used; then the absent ones come, from the worst
        to the best.
        """
        count = wanted.shape[1]
        order = torch.arange(count, 0, -1, device=wanted.device)  # the best is used last
        same = (wanted[:, :, None] == self.blocks[:, None]) & (wanted >= 0)[..., None]  # [heads, k, slots]
        present = same.any(-1)
        touched = same.any(1)
        last = (same * (self._time + order)[:, None]).amax(1)
        self._used = torch.where(touched, last, self._used)
        self._uses += touched
        absent = (wanted >= 0) & ~present
        leaving = self._priority().argsort(dim=1, stable=True)  # [heads, slots]
        slots = leaving.gather(1, (absent.cumsum(1) - 1).clamp_(min=0))
        heads, ranks = absent.nonzero(as_tuple=True)
        taken = Taken(heads, slots[heads, ranks], wanted[heads, ranks], self.blocks[heads, slots[heads, ranks]])
        self.blocks[heads, taken.slots] = taken.blocks
        self._used[heads, taken.slots] = self._time + count + order[ranks]
        self._uses[heads, taken.slots] = 1
        self._time += 2 * count
        return taken

    def _priority(self) -> Tensor:
        """Who stays: the larger the longer; empty slots go first."""
        priority = self._used if self.policy == "lru" else (self._uses << USE_BITS) + self._used
        return torch.where(self.blocks < 0, -1, priority)


class BlockArena(Arena):
    """Keeps whole blocks, and beside them for one step the tokens that were in none.

    The first `fetch_rows` rows are those of the step's single tokens; then come `slots` blocks of each head.
    """

    def __init__(self, heads: int, fetch_rows: int, slots: int, cache: BlockCache, device: torch.device) -> None:
        self.fetch_rows = fetch_rows
        self.rows = fetch_rows + heads * slots * cache.block_size
        self.table = BlockTable(heads, slots, cache.policy, device)
        self._heads, self._slots, self._size = heads, slots, cache.block_size
        self._most = min(cache.blocks_a_step, slots)
        self._fetched = StepArena(fetch_rows, 0, device)
        self._retrieved: list[Tensor] = []  # places of the step's tokens
        self._within = torch.arange(self._size, device=device)

    def begin_step(self, slot_of: Tensor) -> None:
        """Evict the single tokens of the step before."""
        self._fetched.begin_step(slot_of)

    def look_up(self, places: Tensor, slots: Tensor) -> None:
        """Note that these tokens are attended now; a token named several times counts as often for its block."""
        self._fetched.look_up(places, slots)
        self._retrieved.append(places[slots < self.rows])

    def admit(self, places: Tensor, slot_of: Tensor) -> Tensor:
        """Rows for single tokens at `places` [n], distinct and without one; `slot_of` is brought up to date."""
        return self._fetched.admit(places, slot_of)

    def end_step(self, slot_of: Tensor, offloaded: int) -> Filling | None:
        """The blocks that hold most of the step's tokens, those that were not there yet, token by token."""
        if not self._retrieved:
            return None
        places = torch.cat(self._retrieved)
        self._retrieved = []
        capacity, blocks = len(slot_of) // self._heads, offloaded // self._size
        if blocks == 0:
            return None
        self._fetched.begin_step(slot_of)  # the single tokens go now: some are in the blocks that come
        taken = self.table.take(self._most_wanted(places, capacity, blocks))
        replaced = taken.gone >= 0
        gone = self._places(taken.heads[replaced], taken.gone[replaced], capacity)
        held = slot_of[gone]
        slot_of[gone] = torch.where((held >= self.fetch_rows) & (held < self.rows), -1, held)  # pinned ones stay
        came = self._places(taken.heads, taken.blocks, capacity)
        rows = (taken.heads * self._slots + taken.slots) * self._size + self.fetch_rows
        rows = (rows[:, None] + self._within).flatten()
        missing = slot_of[came] < 0
        came, rows = came[missing], rows[missing]
        slot_of[came] = rows.to(slot_of.dtype)
        return Filling(came, rows) if len(came) else None

    def widen(self, capacity: int, wider: int) -> None:
        """Rename the tokens: a head has room for `wider` of them now instead of `capacity`."""
        assert not self._retrieved, "between two steps"
        self._fetched.widen(capacity, wider)

    def _most_wanted(self, places: Tensor, capacity: int, blocks: int) -> Tensor:
        """The first `blocks` blocks of each head with most tokens, the best first, -1 pads: [heads, k].

        Of equal blocks the earlier one is better.
        """
        head, block = places // capacity, places % capacity // self._size
        every = capacity // self._size + 1
        counts = torch.zeros(self._heads * every, dtype=torch.int64, device=places.device)
        counts.scatter_add_(0, head * every + block, torch.ones_like(places))
        counts = counts.view(self._heads, every)[:, :blocks]
        earlier = torch.arange(blocks - 1, -1, -1, device=places.device)
        best = (counts * blocks + earlier).topk(min(self._most, blocks), dim=1).indices
        return best.masked_fill_(counts.gather(1, best) == 0, -1)

    def _places(self, heads: Tensor, blocks: Tensor, capacity: int) -> Tensor:
        """Places [n · block size] of all tokens of these blocks."""
        return ((heads * capacity + blocks * self._size)[:, None] + self._within).flatten()
