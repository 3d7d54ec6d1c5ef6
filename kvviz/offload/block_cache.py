"""PQCache's device cache: whole blocks of tokens; the least used blocks make room for the most retrieved ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .arena import Arena, Filling, StepArena, check_at_least

Policy = Literal["lru", "lfu"]
POLICIES: tuple[Policy, ...] = ("lru", "lfu")
USE_BITS = 40  # the low bits of an int64, for the time of the last use; the number of uses is above them


@dataclass(frozen=True)
class BlockCache:
    """A device cache of whole blocks of `block_size` tokens, with `capacity_tokens` per KV head.

    After each step, the `blocks_a_step` blocks (k_cache) with the most retrieved tokens are added. They replace the
    least recently used ("lru") or least frequently used ("lfu") blocks, by `policy`. Source: PQCache (arXiv
    2407.12820), sections 3.4, 4.1.4 and 4.3.2; the defaults are the paper's.

    Tokens of an added block that the step fetched one by one are copied on the device; the others are fetched.

    Deviations: the capacity is at most half of the prompt. No more blocks are added than fit (the paper shows that the
    hit rate falls otherwise), none without a retrieved token, and none before all its tokens are offloaded. The device
    also has room for the tokens that one step fetches.

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

    def slots(self, prompt: int) -> int:
        """The number of blocks per head: at least one, and at most half of the prompt; the rest stays offloaded."""
        return max(min(self.capacity_tokens, prompt // 2) // self.block_size, 1)

    def arena(self, heads: int, budget: int, prompt: int, arena_tokens: int | None, device: torch.device) -> Arena:
        """The arena of a layer with `heads` heads in the whole batch; each fetches at most `budget` tokens at once."""
        tokens = min(budget, prompt) if arena_tokens is None else arena_tokens
        return BlockArena(heads, heads * tokens, self.slots(prompt), self, device)


class Taken(NamedTuple):
    """Blocks added to the cache: their heads, slots and numbers, and the blocks replaced (-1: none), each [n]."""

    heads: Tensor
    slots: Tensor
    blocks: Tensor
    gone: Tensor


class BlockTable:
    """The blocks in the `slots` of each head, and which one is replaced next; all heads at once.

    `blocks` [heads, slots] holds the blocks' numbers, -1 for an empty slot.
    """

    def __init__(self, heads: int, slots: int, policy: Policy, device: torch.device) -> None:
        self.policy = policy
        self.blocks = torch.full((heads, slots), -1, dtype=torch.int64, device=device)
        self._uses = torch.zeros_like(self.blocks)  # since the block was added
        self._used = torch.zeros_like(self.blocks)  # time of the last use, different for all blocks of a step
        self._time = 0

    def take(self, wanted: Tensor) -> Taken:
        """Use the blocks `wanted` [heads, k], the best first, -1 pads, k at most the slots; absent ones are added.

        First the present blocks are used, from the worst to the best. Then as many blocks as needed are removed, the
        least used first, and the least recently used of equals. Then the absent blocks are added, from the worst to
        the best.
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
        """The priority of the blocks to stay, [heads, slots]; empty slots have the lowest."""
        priority = self._used if self.policy == "lru" else (self._uses << USE_BITS) + self._used
        return torch.where(self.blocks < 0, -1, priority)


class BlockArena(Arena):
    """An arena of whole blocks and, for one step, of single tokens that are in no block.

    The first `fetch_rows` rows hold the step's single tokens; then come `slots` blocks per head.
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
        """Evict the single tokens of the previous step."""
        self._fetched.begin_step(slot_of)

    def look_up(self, places: Tensor, slots: Tensor) -> None:
        """Note that the step attends to these tokens; a repeated token counts several times for its block."""
        self._fetched.look_up(places, slots)
        self._retrieved.append(places[slots < self.rows])

    def admit(self, places: Tensor, slot_of: Tensor) -> Tensor:
        """Rows for the single tokens at `places` [n], which are distinct and have none; updates `slot_of`."""
        return self._fetched.admit(places, slot_of)

    def end_step(self, slot_of: Tensor, offloaded: int) -> Filling | None:
        """The tokens of the blocks that are added: those with most of the step's tokens. These tokens are copied."""
        if not self._retrieved:
            return None
        places = torch.cat(self._retrieved)
        self._retrieved = []
        capacity, blocks = len(slot_of) // self._heads, offloaded // self._size
        if blocks == 0:
            return None
        taken = self.table.take(self._most_retrieved(places, capacity, blocks))
        replaced = taken.gone >= 0
        evicted = self._places(taken.heads[replaced], taken.gone[replaced], capacity)
        slots = slot_of[evicted]
        slot_of[evicted] = torch.where((slots >= self.fetch_rows) & (slots < self.rows), -1, slots)  # not pinned ones
        added = self._places(taken.heads, taken.blocks, capacity)
        rows = (taken.heads * self._slots + taken.slots) * self._size + self.fetch_rows
        rows = (rows[:, None] + self._within).flatten()
        slots = slot_of[added].to(torch.int64)
        self._fetched.begin_step(slot_of)  # evicts the single tokens, whose rows are still there to be copied
        joins = slots < self.fetch_rows  # the others are pinned, or among the newest
        slot_of[added[joins]] = rows[joins].to(slot_of.dtype)
        single, absent = joins & (slots >= 0), slots < 0
        return Filling(added[absent], rows[absent], slots[single], rows[single]) if bool(joins.any()) else None

    def widen(self, capacity: int, wider: int) -> None:
        """Update the places of the tokens: the capacity of a head changes from `capacity` to `wider`."""
        assert not self._retrieved, "between two steps"
        self._fetched.widen(capacity, wider)

    def _most_retrieved(self, places: Tensor, capacity: int, blocks: int) -> Tensor:
        """The blocks with the most tokens, of the first `blocks` of each head, the best first, -1 pads: [heads, k].

        Ties go to the earlier block.
        """
        head, block = places // capacity, places % capacity // self._size
        block_count = capacity // self._size + 1
        counts = torch.zeros(self._heads * block_count, dtype=torch.int64, device=places.device)
        counts.scatter_add_(0, head * block_count + block, torch.ones_like(places))
        counts = counts.view(self._heads, block_count)[:, :blocks]
        earlier = torch.arange(blocks - 1, -1, -1, device=places.device)
        best = (counts * blocks + earlier).topk(min(self._most, blocks), dim=1).indices
        return best.masked_fill_(counts.gather(1, best) == 0, -1)

    def _places(self, heads: Tensor, blocks: Tensor, capacity: int) -> Tensor:
        """Places [n · block_size] of all tokens in these blocks."""
        return ((heads * capacity + blocks * self._size)[:, None] + self._within).flatten()
