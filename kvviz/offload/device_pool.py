"""The device part of an offloaded layer: an arena for fetched tokens, the sinks and the newest tokens."""

from __future__ import annotations

from concurrent.futures import Future

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..trace.timeline import LayerTimeline, span, waiting
from .arena import Arena
from .background import Pending, begin
from .device_store import DeviceStore
from .lower_tier import LowerTier, RowShape


class DevicePool:
    """A pool of `rows` [N, W], each the key and value of one token, and a table that gives the row of each token.

    First come the arena's rows, then the pinned ones, then a ring of `ring` rows per head for the newest tokens. The
    place of a token is head · capacity + position; `slot_of`, int32 [heads · capacity], gives its row, -1 for none.
    All heads share the pool, so `buffers` shows all of it to each head.

    From a prompt in `staging` it copies the tokens at the positions `pinned` [B, s] and those from position `start` on.
    Each head has places for `capacity` tokens, and the ring has room for `spare` more tokens.
    """

    def __init__(
        self,
        shape: RowShape,
        arena: Arena,
        staging: DeviceStore,
        start: int,
        pinned: Tensor | None,
        *,
        capacity: int,
        spare: int,
    ) -> None:
        if pinned is None:
            pinned = torch.empty((shape.batch, 0), dtype=torch.int64, device=shape.like.device)
        positions = pinned[:, None].expand(-1, shape.heads, -1)  # [B, H, s]
        self._shape, self.arena, self.capacity = shape, arena, capacity
        self._fetching: Pending[None] | Future[None] | None = None  # tokens that the arena keeps
        self.newest_start = self.length = start  # the range of positions in the ring
        self.heads, self.ring = shape.batch * shape.heads, staging.length - start + spare
        self._ring_row = arena.rows + positions.numel()
        self.rows = shape.like.new_empty((self._ring_row + self.heads * self.ring, shape.width))
        self.rows[arena.rows : self._ring_row] = torch.cat(staging.read(positions), dim=-1).flatten(0, 2)
        self.slot_of = torch.full((self.heads * capacity,), -1, dtype=torch.int32, device=shape.like.device)
        slots = torch.arange(arena.rows, self._ring_row, dtype=torch.int32, device=shape.like.device)
        self.slot_of[shape.places(positions, capacity, padded=False).flatten()] = slots
        newest = torch.cat([staging.keys[:, :, start:], staging.values[:, :, start:]], dim=-1)
        self.append(newest.flatten(0, 1))

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rows and of the table."""
        return sum(tensor.numel() * tensor.element_size() for tensor in (self.rows, self.slot_of))

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the whole pool for each head, views [B, H, N, D]."""
        return self._shape.split(self.rows.expand(self._shape.batch, self._shape.heads, *self.rows.shape))

    def slots_at(self, places: Tensor) -> Tensor:
        """The rows of the tokens at `places` [n], int32, -1 for tokens in none."""
        return self.slot_of.index_select(0, places)

    def parts(self, places: Tensor, indices: Tensor) -> list[slice] | None:
        """Slices of the slots of `indices` [B, R, S], at `places` [B · R · S], that fit the arena; None if all fit.

        Raises InvalidInputError if not even one token per selection head fits.
        """
        bound, slots = self.arena.fetch_rows, indices.shape[2]
        needed = (self.slots_at(places) < bound) & (indices >= 0).flatten()
        if int(needed.sum()) <= bound:
            return None
        selection_heads = indices.shape[:2].numel()
        step = bound // selection_heads
        if step == 0:
            wanted = f"at least {selection_heads // self.heads}, one for each query head that selects its own tokens"
            raise InvalidInputError("KVStore: arena_tokens", bound // self.heads, wanted)
        return [slice(start, min(start + step, slots)) for start in range(0, slots, step)]

    def count_copies(self, slots: Tensor, *, distinct: bool) -> int:
        """Number of different arena rows in `slots` [n]; `distinct` promises that no row occurs twice."""
        copies = slots < self.arena.rows
        if distinct:
            return int(copies.sum())
        occurs = torch.zeros(self.arena.rows, dtype=torch.bool, device=slots.device)
        occurs[slots[copies]] = True
        return int(occurs.sum())

    def end_step(self, lower: LowerTier, timeline: LayerTimeline | None) -> int:
        """Keep the tokens that the arena chooses after a step; returns the bytes that are fetched from `lower`.

        They are fetched concurrently with the model. Tokens that the step itself fetched are copied within the pool,
        at once, because the next step overwrites their rows.
        """
        filling = self.arena.end_step(self.slot_of, self.newest_start)
        if filling is None:
            return 0
        lower.wait(timeline)
        self.wait(timeline)
        rows, target = lower.rows, self.rows
        target.index_copy_(0, filling.copies, target.index_select(0, filling.copied))
        if not len(filling.places):
            return 0
        filled = len(filling.places) * self._shape.token_bytes
        recorded, inputs = span(timeline, "transfer", "fill"), (target, filling.places, filling.rows)
        self._fetching = begin(lambda: rows.load(filling.places, target, filling.rows), inputs, filled, recorded)
        return filled

    def wait(self, timeline: LayerTimeline | None) -> None:
        """Wait until the tokens that the arena keeps are fetched; raises the error of their transfer."""
        if self._fetching is not None:
            with waiting(timeline):
                self._fetching.result()
            self._fetching = None

    def append(self, rows: Tensor) -> None:
        """Add the rows [heads, n, W] of the next tokens, at most as many as the ring has room for."""
        end = self.length + rows.shape[1]
        assert end - self.newest_start <= self.ring
        places = torch.arange(self.length, end, device=rows.device) % self.ring
        self._of_ring()[:, places] = rows
        first = torch.arange(self.heads, device=rows.device)[:, None] * self.ring + self._ring_row
        self.slot_of.view(self.heads, -1)[:, self.length : end] = (first + places).to(torch.int32)
        self.length = end

    def newest(self, start: int, end: int) -> Tensor:
        """A copy of the rows [heads, n, W] of the tokens from `start` to `end`, which are in the ring."""
        places = torch.arange(start, end, device=self.rows.device) % self.ring
        return self._of_ring()[:, places]

    def evict(self, end: int) -> None:
        """Evict the ring's tokens before position `end`; their rows are overwritten by later tokens."""
        self.slot_of.view(self.heads, -1)[:, self.newest_start : end] = -1
        self.newest_start = end

    def widen(self, capacity: int) -> None:
        """Make room for `capacity` tokens per head in the table."""
        wider = self.slot_of.new_full((self.heads, capacity), -1)
        wider[:, : self.capacity] = self.slot_of.view(self.heads, -1)
        self.slot_of = wider.flatten()
        self.arena.widen(self.capacity, capacity)
        self.capacity = capacity

    def widen_ring(self, ring: int) -> None:
        """Make room for `ring` tokens per head in the ring."""
        newest = self.newest(self.newest_start, self.length)
        wider = self.rows.new_empty((self._ring_row + self.heads * ring, self.rows.shape[1]))
        wider[: self._ring_row] = self.rows[: self._ring_row]
        self.rows, self.ring = wider, ring
        self.length = self.newest_start
        self.append(newest)

    def _of_ring(self) -> Tensor:
        return self.rows[self._ring_row :].view(self.heads, self.ring, -1)
