"""The device's part of an offloaded layer: an arena for what is fetched, the sinks and the newest tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .arena import Arena
from .device_store import DeviceStore
from .lower_tier import RowShape


class DevicePool:
    """A pool of `rows` [N, W], each a token's key and value, and for every token the row that holds it.

    First come the arena's rows, then the pinned ones, then a ring of `ring` rows per head for the newest tokens. Tokens
    go by their place, head · capacity + position, in `slot_of`, int32 [heads · capacity], -1 where no row holds one.
    All heads share the pool, so `buffers` shows it to each of them whole.

    From a prompt in `staging` it takes the tokens at the positions `pinned` [B, s] and those from position `start` on.
    `capacity` tokens per head have a place, and `spare` more than now can be the newest.
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
        self.newest_start = self.length = start  # the positions that are in the ring
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
        """Bytes of the rows and of the table that finds them."""
        return sum(part.numel() * part.element_size() for part in (self.rows, self.slot_of))

    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the pool as every head sees them, views [B, H, N, D] without a copy."""
        return self._shape.split(self.rows.expand(self._shape.batch, self._shape.heads, *self.rows.shape))

    def slots_at(self, places: Tensor) -> Tensor:
        """The rows of the tokens at `places` [n], int32, -1 where no row holds one."""
        return self.slot_of.index_select(0, places)

    def parts(self, places: Tensor, indices: Tensor) -> list[slice] | None:
        """Runs of slots of `indices` [B, R, S], tokens at `places` [B · R · S], that fit the arena; None where all do.

        Raises InvalidInputError where not even one token of each selection head fits.
        """
        bound, slots = self.arena.fetch_rows, indices.shape[2]
        needed = (self.slots_at(places) < bound) & (indices >= 0).flatten()
        if int(needed.sum()) <= bound:
            return None
        selection_heads = indices.shape[:2].numel()
        most = bound // selection_heads
        if most == 0:
            wanted = f"at least {selection_heads // self.heads}, one for each query head that chooses for itself"
            raise InvalidInputError("KVStore: arena_tokens", bound // self.heads, wanted)
        return [slice(start, min(start + most, slots)) for start in range(0, slots, most)]

    def count_copies(self, slots: Tensor, *, distinct: bool) -> int:
        """How many of the arena's rows there are in `slots` [n]; unless those are `distinct`, each row counts once."""
        copies = slots < self.arena.rows
        if distinct:
            return int(copies.sum())
        named = torch.zeros(self.arena.rows, dtype=torch.bool, device=slots.device)
        named[slots[copies]] = True
        return int(named.sum())

    def append(self, rows: Tensor) -> None:
        """Add the next tokens' rows [heads, n, W], no more than the ring has room for."""
        end = self.length + rows.shape[1]
        assert end - self.newest_start <= self.ring
        places = torch.arange(self.length, end, device=rows.device) % self.ring
        self._of_ring()[:, places] = rows
        first = torch.arange(self.heads, device=rows.device)[:, None] * self.ring + self._ring_row
        self.slot_of.view(self.heads, -1)[:, self.length : end] = (first + places).to(torch.int32)
        self.length = end

    def newest(self, start: int, end: int) -> Tensor:
        """Rows [heads, n, W] of tokens that are in the ring, a copy."""
        places = torch.arange(start, end, device=self.rows.device) % self.ring
        return self._of_ring()[:, places]

    def evict(self, end: int) -> None:
        """Evict the ring's tokens before position `end`; their rows stay as they are until new tokens need them."""
        self.slot_of.view(self.heads, -1)[:, self.newest_start : end] = -1
        self.newest_start = end

    def widen(self, capacity: int) -> None:
        """Make room for `capacity` tokens per head in the table of rows."""
        wider = self.slot_of.new_full((self.heads, capacity), -1)
        wider[:, : self.capacity] = self.slot_of.view(self.heads, -1)
        self.slot_of = wider.flatten()
        self.arena.widen(self.capacity, capacity)
        self.capacity = capacity

    def widen_ring(self, ring: int) -> None:
        """Make room for `ring` newest tokens per head."""
        newest = self.newest(self.newest_start, self.length)
        wider = self.rows.new_empty((self._ring_row + self.heads * ring, self.rows.shape[1]))
        wider[: self._ring_row] = self.rows[: self._ring_row]
        self.rows, self.ring = wider, ring
        self.length = self.newest_start
        self.append(newest)

    def _of_ring(self) -> Tensor:
        return self.rows[self._ring_row :].view(self.heads, self.ring, -1)
