"""One layer's keys and values with most tokens outside the device: in host memory or on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..background import Pending
from ..timeline import span, waiting
from .arena import Arena
from .base import ALL_ROWS, Fetched, LayerStore
from .outer import HostRows
from .resident import ResidentRows
from .store import SPARE_TOKENS, DeviceStore
from .transfer import Underway, begin

OFFLOAD_INTERVAL = 64  # generated tokens that leave the device together


class MakesRows(Protocol):
    """Makes the rows outside the device."""

    def __call__(self, heads: int, capacity: int, width: int, like: Tensor) -> HostRows:
        """Room for `capacity` tokens of each of `heads` heads, `width` elements of the dtype of `like`."""


class OffloadedStore(LayerStore):
    """Keeps sinks and newest tokens on the device and all others outside it; copies back what a step attends.

    A prompt is whole on the device while it is attended, since exact attention reads all of it; `park` and `settle`
    copy it out, beside the model's work. After `settle` the device holds one pool of rows: the arena's, never more than
    it was given, the sinks' and the newest tokens'. What comes back is bit for bit what went out.

    A step whose tokens do not fit the arena at once is fetched in `parts`.
    """

    offloads = True

    def __init__(self, make_rows: MakesRows, make_arena: Callable[[int, int, torch.device], Arena]) -> None:
        self._make_rows, self._make_arena = make_rows, make_arena
        self._expected = 0
        self._total = 0  # tokens announced in all, or 0
        self._staging: DeviceStore | None = None  # the whole prompt, while it is attended
        self._outer: HostRows | None = None
        self._resident: ResidentRows | None = None
        self._writing: Pending[None] | None = None
        self._filling: Underway[None] | None = None
        self._outside = 0  # the tokens before this position are outside, or on their way there
        self._like = torch.empty(0)  # device and dtype
        self._batch = self._heads = self._key_width = self._width = 0

    @property
    def keys(self) -> Tensor:
        """All keys, [B, H, L, D]; fetched where they are not on the device."""
        return self._whole(slice(0, self._key_width)) if self._staging is None else self._staging.keys

    @property
    def values(self) -> Tensor:
        """All values, [B, H, L, D]; fetched where they are not on the device."""
        return self._whole(slice(self._key_width, self._width)) if self._staging is None else self._staging.values

    @property
    def batch(self) -> int:
        """Sequences of the batch, once tokens were stored."""
        return self._batch

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value, of one KV head."""
        return self._width * self._like.element_size()

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens, while a prompt comes in."""
        self._expected = max(self._expected, capacity)
        self._stage(keys, values)

    def expect(self, tokens: int) -> None:
        """Announce how many tokens will be stored in all; that much room is made outside, and no more."""
        self._total = tokens

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""
        count = keys.shape[2]
        if count > 1 or self._resident is None:
            self._stage(keys, values).append(keys, values)
        else:
            self._make_outer_room(self.length + 1)  # a token's place is known while it is on the device
            self._end_step(self._resident)
            self._resident.append(torch.cat([keys, values], dim=-1).flatten(0, 1))
            self._resident.arena.begin_step(self._resident.slot_of)
        self.length += count
        self.used = self.length
        self.newest = (keys, values) if count == 1 else None

    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, count, D] of the last tokens stored."""
        if count == 1 and self.newest is not None:
            return self.newest
        if self._staging is not None:
            return self._staging.last(count)
        return self.keys[:, :, -count:], self.values[:, :, -count:]

    def park(self) -> None:
        """Copy a part of a prompt out, before the next part comes."""
        if self._staging is not None:
            self._copy_out(self._staging, self.length)
            self._staging = None

    def settle(self, newest: int, pinned: Tensor | None = None) -> None:
        """Copy all but the `newest` tokens out; those at the positions `pinned` [B, s] stay on the device as well.

        The copy runs beside the model's work. A later call copies out what generation has added since.
        """
        if self._staging is None:
            self._end_step(self._settled())
            self._release(newest)
            return
        staging, start = self._staging, max(self.length - newest, 0)
        self._copy_out(staging, start)
        self._resident = self._made_resident(staging, start, pinned)
        self._staging = None

    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The tokens at `indices` [B, R, S], -1 pads, on the device; valid until the next call."""
        if self._staging is not None:
            return self._staging.fetch(indices, padded=padded)
        resident = self._settled()
        places = self._places(indices, padded=padded).flatten()
        if padded:  # no token is fetched for a pad
            there = indices.flatten() >= 0
            slots = torch.full(there.shape, -1, device=places.device)
            slots[there] = self._look_up(resident, places[there], indices.shape[1]).to(torch.int64)
        else:
            slots = self._look_up(resident, places, indices.shape[1]).to(torch.int64)
        if self._filling is not None:
            with waiting(self.timeline):
                self._filling.result()
            self._filling = None
        return Fetched(*resident.buffers(self._batch, self._heads, self._key_width), slots.view_as(indices))

    def missing(self, indices: Tensor) -> Tensor | None:
        """Which of the tokens at `indices` [B, R, S] would be fetched from outside now; pads are not."""
        if self._staging is not None:
            return None
        slots = self._settled().slot_of.index_select(0, self._places(indices).flatten())
        return (slots < 0).view_as(indices) & (indices >= 0)

    def parts(self, indices: Tensor) -> list[slice] | None:
        """Runs of slots whose tokens fit the arena; None where all do."""
        batch, rows, slots = indices.shape
        if self._resident is None or indices.numel() <= self._resident.arena.fetch_rows:
            return None
        held = self._resident.slot_of.index_select(0, self._places(indices).flatten())
        needed = (held < self._resident.arena.fetch_rows) & (indices >= 0).flatten()
        if int(needed.sum()) <= self._resident.arena.fetch_rows:
            return None
        most = self._resident.arena.fetch_rows // (batch * rows)
        return [slice(start, min(start + most, slots)) for start in range(0, slots, most)]

    def outside(self, indices: Tensor, rows: slice = ALL_ROWS) -> Fetched | None:
        """The tokens at `indices` [B, R, S], -1 pads, in the host memory that keeps them; None unless it has all."""
        if self._staging is not None or int(indices.max()) >= self._outside:
            return None
        self.wait()
        assert self._outer is not None
        places = self._places(indices, rows).cpu()
        found, slots = self._outer.at(places)
        seen = found.expand(*places.shape[:1], self._heads, *found.shape)
        slots = slots.masked_fill(indices.cpu() < 0, -1)
        return Fetched(seen[..., : self._key_width], seen[..., self._key_width :], slots)

    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads another token."""
        staging = self._staging  # a worker may build a state while the prompt is copied out
        if staging is not None:
            return staging.read(positions, rows)
        found = self._rows_at(positions, rows)
        return found[..., : self._key_width], found[..., self._key_width :]

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some other token."""
        return self.read(positions, rows)[0]

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory that holds keys and values on each tier, spare room and the table of rows included."""
        device = 0 if self._staging is None else self._staging.kept_bytes()["device"]
        if self._resident is not None:
            device += sum(part.numel() * part.element_size() for part in (self._resident.pool, self._resident.slot_of))
        outer = {} if self._outer is None else {self._outer.tier: self._outer.stored_bytes}
        return {"device": device, **outer}

    def renewed(self) -> OffloadedStore:
        """An empty store like this one."""
        return OffloadedStore(self._make_rows, self._make_arena)

    def wait(self) -> None:
        """Wait until what is on its way has arrived; raises what went wrong."""
        for pending in (self._writing, self._filling):
            if pending is not None:
                with waiting(self.timeline):
                    pending.result()
        self._writing = self._filling = None

    def _settled(self) -> ResidentRows:
        assert self._resident is not None, "a decode step before the prompt was settled"
        return self._resident

    def _stage(self, keys: Tensor, values: Tensor) -> DeviceStore:
        """The prompt's own store on the device, with all tokens so far."""
        if self._staging is not None:
            return self._staging
        staging = DeviceStore()
        staging.reserve(keys, values, max(self._expected, self.length + keys.shape[2]))
        if self.length:
            staging.append(self.keys, self.values)
        else:
            self._like = keys.new_empty(0)
            self._batch, self._heads, self._key_width = keys.shape[0], keys.shape[1], keys.shape[-1]
            self._width = self._key_width + values.shape[-1]
        self._resident = None
        self._staging = staging
        return staging

    def _made_resident(self, staging: DeviceStore, start: int, pinned: Tensor | None) -> ResidentRows:
        assert self._outer is not None
        heads, capacity, newest = self._batch * self._heads, self._outer.capacity, self.length - start
        if pinned is None:
            pinned = torch.empty((self._batch, 0), dtype=torch.int64, device=self._like.device)
        positions = pinned[:, None].expand(-1, self._heads, -1)  # [B, H, s]
        places = self._places(positions, padded=False, capacity=capacity)
        resident = ResidentRows(
            heads,
            capacity,
            newest + 2 * OFFLOAD_INTERVAL,
            places.flatten(),
            self._make_arena(heads, self.length, self._like.device),
            self._like,
            self._width,
        )
        resident.pinned_rows().copy_(torch.cat(staging.read(positions), dim=-1).flatten(0, 2))
        rows = torch.cat([staging.keys[:, :, start:], staging.values[:, :, start:]], dim=-1)
        resident.start_ring(start, rows.flatten(0, 1))
        return resident

    def _copy_out(self, staging: DeviceStore, end: int) -> None:
        """Copy the tokens of a prompt that are not outside yet, up to `end`."""
        self._make_outer_room(self.length)
        start = self._outside
        if end > start:
            self._write(start, staging.keys[:, :, start:end], staging.values[:, :, start:end])

    def _release(self, newest: int) -> None:
        """Copy out generated tokens, some at a time, all but the `newest`."""
        resident = self._settled()
        if newest + 2 * OFFLOAD_INTERVAL > resident.ring:
            self.wait()
            resident.widen_ring(2 * (newest + OFFLOAD_INTERVAL))
        end = self.length - newest
        if end - resident.newest_start < OFFLOAD_INTERVAL:
            return
        self.wait()
        if end > self._outside:
            rows = resident.newest(self._outside, end).unflatten(0, (self._batch, self._heads))
            self._write(self._outside, rows[..., : self._key_width], rows[..., self._key_width :])
        resident.release(end)

    def _write(self, start: int, keys: Tensor, values: Tensor) -> None:
        self.wait()
        outer = self._outer
        assert outer is not None
        offload = span(self.timeline, "transfer", "offload")
        self._writing = Pending(
            lambda: outer.write(start, keys, values), (keys, values), stream="transfer", span=offload
        )
        self._outside = start + keys.shape[2]

    def _make_outer_room(self, end: int) -> None:
        """Room outside for `end` tokens, with some to spare where more will come."""
        if self._outer is not None and end <= self._outer.capacity:
            return
        capacity = max(self._expected, end + max(SPARE_TOKENS, end // 8)) if end > self._total else self._total
        self.wait()
        if self._outer is None:
            self._outer = self._make_rows(self._batch * self._heads, capacity, self._width, self._like)
        else:
            self._outer = self._outer.grown(capacity)
        if self._resident is not None:
            self._resident.widen(capacity)

    def _places(
        self, positions: Tensor, rows: slice = ALL_ROWS, *, padded: bool = True, capacity: int | None = None
    ) -> Tensor:
        """Where tokens lie outside, int64 [B, R, S]; a pad takes the place of a token of its own head."""
        if padded:
            positions = torch.where(positions < 0, positions.amax(-1, keepdim=True).clamp_(min=0), positions)
        of_batch = torch.arange(self._batch, device=positions.device)[rows, None, None]
        of_row = torch.arange(positions.shape[1], device=positions.device)[:, None]
        head = of_batch * self._heads + of_row // (positions.shape[1] // self._heads)
        if capacity is None:
            assert self._outer is not None
            capacity = self._outer.capacity
        return positions + head * capacity

    def _look_up(self, resident: ResidentRows, places: Tensor, rows: int) -> Tensor:
        """The pool's rows of the tokens at `places` [n], int32; what is in none is fetched.

        Several of the `rows` rows of choice may name a token where they are more than the heads.
        """
        distinct = rows == self._heads
        slots = resident.slot_of.index_select(0, places)
        resident.arena.look_up(places, slots)
        absent = slots < 0
        count = int(absent.sum())
        if count:
            missing = places if count == len(places) else places[absent]
            rows_of_missing = self._load(resident, missing if distinct else missing.unique())
            if distinct and missing is places:
                slots = rows_of_missing.to(slots.dtype)
            else:
                slots = resident.slot_of.index_select(0, places)
        copies = slots < resident.arena.rows
        self.lookups += int(copies.sum()) if distinct else _count_distinct(slots[copies], resident.arena.rows)
        return slots

    def _end_step(self, resident: ResidentRows) -> None:
        """Let the arena take in what it wants for later steps, beside the model's work."""
        filling = resident.arena.end_step(resident.slot_of, resident.newest_start)
        if filling is None:
            return
        self.wait()
        outer, pool = self._outer, resident.pool
        assert outer is not None
        filled = len(filling.places) * self.token_bytes
        recorded = span(self.timeline, "transfer", "fill")
        self._filling = begin(
            lambda: outer.load(filling.places, pool, filling.rows), (pool, *filling), filled, recorded
        )
        self.filled_bytes += filled
        self.moved_bytes += filled

    def _load(self, resident: ResidentRows, places: Tensor) -> Tensor:
        """Copy the tokens at these distinct places into the arena; returns their rows there."""
        self.wait()
        assert self._outer is not None
        rows = resident.arena.admit(places, resident.slot_of)
        with span(self.timeline, "transfer", "fetch"):
            self._outer.load(places, resident.pool, rows)
        self.misses += len(places)
        self.moved_bytes += len(places) * self.token_bytes
        return rows

    def _rows_at(self, positions: Tensor, rows: slice) -> Tensor:
        """Keys and values [B, R, S, W] at `positions`, read without the arena."""
        self.wait()
        assert self._outer is not None
        places = self._places(positions, rows)
        found = self._like.new_empty((places.numel(), self._width))
        everywhere = torch.arange(places.numel(), device=places.device)
        outside = (positions < self._outside).flatten()
        with span(self.timeline, "transfer", "fetch"):
            self._outer.load(places.flatten()[outside], found, everywhere[outside])
        self.moved_bytes += int(outside.sum()) * self.token_bytes
        if not bool(outside.all()):
            resident = self._settled()
            slots = resident.slot_of.index_select(0, places.flatten()[~outside]).to(torch.int64)
            found[~outside] = resident.pool.index_select(0, slots)
        return found.view(*positions.shape, self._width)

    def _whole(self, channels: slice) -> Tensor:
        """These channels of every token, [B, H, L, n], read back."""
        self.wait()
        assert self._outer is not None
        with span(self.timeline, "transfer", "fetch"):
            parts = [self._outer.range(0, self._outside)[..., channels].to(self._like.device, copy=True)]
        self.moved_bytes += parts[0].numel() * parts[0].element_size()
        if self._outside < self.length:
            parts.append(self._settled().newest(self._outside, self.length)[..., channels])
        whole = torch.cat(parts, dim=1)
        return whole.view(self._batch, self._heads, *whole.shape[1:])


def _count_distinct(slots: Tensor, rows: int) -> int:
    """How many different rows of `rows` there are in slots [n]."""
    named = torch.zeros(rows, dtype=torch.bool, device=slots.device)
    named[slots] = True
    return int(named.sum())
