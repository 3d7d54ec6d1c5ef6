"""The rows of one layer that are on the device: an arena for what is fetched, the sinks and the newest tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from .arena import Arena
from .device_store import DeviceStore
from .lower_tier import RowShape


class ResidentRows:
    """A pool of rows [N, W], each a token's key and value, and for every token the row that holds it.

    The pool is the arena's rows, then the pinned ones, then a ring of `ring` rows a head for the newest tokens. Tokens
    go by their place, head · capacity + position, in `slot_of`, int32 [heads · capacity], -1 where no row holds one.
    All heads share the pool, so `buffers` shows it to each of them whole.
    """

    def __init__(
        self, heads: int, capacity: int, ring: int, pinned: Tensor, arena: Arena, like: Tensor, width: int
    ) -> None:
        self.heads, self.capacity, self.ring, self.arena = heads, capacity, ring, arena
        self.newest_start = self.length = 0  # the positions that are in the ring
        self._ring_row = arena.rows + len(pinned)
        self.pool = like.new_empty((self._ring_row + heads * ring, width))
        self.slot_of = torch.full((heads * capacity,), -1, dtype=torch.int32, device=like.device)
        rows = torch.arange(arena.rows, self._ring_row, dtype=torch.int32, device=like.device)
        self.slot_of[pinned] = rows  # filled by the caller

    @classmethod
    def of(
        cls,
        shape: RowShape,
        capacity: int,
        staging: DeviceStore,
        start: int,
        pinned: Tensor | None,
        arena: Arena,
        spare: int,
    ) -> ResidentRows:
        """What stays of a prompt: the tokens at the positions `pinned` [B, s] and those from position `start` on.

        `capacity` tokens a head can be told apart, and `spare` more than now can be the newest.
        """
        if pinned is None:
            pinned = torch.empty((shape.batch, 0), dtype=torch.int64, device=shape.like.device)
        positions = pinned[:, None].expand(-1, shape.heads, -1)  # [B, H, s]
        places, heads = shape.places(positions, capacity, padded=False).flatten(), shape.batch * shape.heads
        ring = staging.length - start + spare
        resident = cls(heads, capacity, ring, places, arena, shape.like, shape.width)
        resident.pinned_rows().copy_(torch.cat(staging.read(positions), dim=-1).flatten(0, 2))
        rows = torch.cat([staging.keys[:, :, start:], staging.values[:, :, start:]], dim=-1)
        resident.start_ring(start, rows.flatten(0, 1))
        return resident

    def buffers(self, shape: RowShape) -> tuple[Tensor, Tensor]:
        """Keys and values of the pool as every head sees them, views [B, H, N, D] without a copy."""
        return shape.split(self.pool.expand(shape.batch, shape.heads, *self.pool.shape))

    def pinned_rows(self) -> Tensor:
        """The rows of the pinned tokens, a view [n, W]."""
        return self.pool[self.arena.rows : self._ring_row]

    def start_ring(self, start: int, rows: Tensor) -> None:
        """Put the newest tokens' rows [heads, n, W] into the ring, the first at position `start`."""
        self.newest_start = self.length = start
        self.append(rows)

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
        places = torch.arange(start, end, device=self.pool.device) % self.ring
        return self._of_ring()[:, places]

    def release(self, end: int) -> None:
        """Let the ring's tokens before position `end` go; their rows stay as they are until new tokens need them."""
        self.slot_of.view(self.heads, -1)[:, self.newest_start : end] = -1
        self.newest_start = end

    def widen(self, capacity: int) -> None:
        """Make room for `capacity` tokens a head in the table of rows."""
        wider = self.slot_of.new_full((self.heads, capacity), -1)
        wider[:, : self.capacity] = self.slot_of.view(self.heads, -1)
        self.slot_of = wider.flatten()
        self.arena.widen(self.capacity, capacity)
        self.capacity = capacity

    def widen_ring(self, ring: int) -> None:
        """Make room for `ring` newest tokens a head."""
        start, rows = self.newest_start, self.newest(self.newest_start, self.length)
        pool = self.pool.new_empty((self._ring_row + self.heads * ring, self.pool.shape[1]))
        pool[: self._ring_row] = self.pool[: self._ring_row]
        self.pool, self.ring = pool, ring
        self.start_ring(start, rows)

    def _of_ring(self) -> Tensor:
        return self.pool[self._ring_row :].view(self.heads, self.ring, -1)
