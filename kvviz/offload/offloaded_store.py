"""One layer's keys and values with most tokens outside the device: in host memory or on disk."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..trace.timeline import span, waiting
from .arena import Arena
from .background import Pending, begin
from .device_pool import ResidentRows
from .device_store import DeviceStore
from .layer_store import ALL_ROWS, Fetched, LayerStore
from .lower_tier import MakesRows, OutsideTokens, RowShape

OFFLOAD_INTERVAL = 64  # generated tokens that leave the device together


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
        self._outside = OutsideTokens(make_rows)
        self._resident: ResidentRows | None = None
        self._filling: Pending[None] | Future[None] | None = None
        self._shape = RowShape(0, 0, 0, 0, torch.empty(0))

    @property
    def keys(self) -> Tensor:
        """All keys, [B, H, L, D]; fetched where they are not on the device."""
        return self._whole(slice(0, self._shape.key_width)) if self._staging is None else self._staging.keys

    @property
    def values(self) -> Tensor:
        """All values, [B, H, L, D]; fetched where they are not on the device."""
        return (
            self._whole(slice(self._shape.key_width, self._shape.width))
            if self._staging is None
            else self._staging.values
        )

    @property
    def batch(self) -> int:
        """Sequences of the batch, once tokens were stored."""
        return self._shape.batch

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value, of one KV head."""
        return self._shape.token_bytes

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
            self._make_room(self.length + 1)  # a token's place is known while it is on the device
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
        arena = self._make_arena(self._shape.batch * self._shape.heads, self.length, self._shape.like.device)
        self._resident = ResidentRows.of(
            self._shape, self._outside.rows.capacity, staging, start, pinned, arena, 2 * OFFLOAD_INTERVAL
        )
        self._staging = None

    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The tokens at `indices` [B, R, S], -1 pads, on the device; valid until the next call."""
        if self._staging is not None:
            return self._staging.fetch(indices, padded=padded)
        resident = self._settled()
        places = self._places(indices, padded=padded)
        if padded:  # no token is fetched for a pad
            there = indices.flatten() >= 0
            slots = torch.full(there.shape, -1, device=places.device)
            slots[there] = self._look_up(resident, places[there], indices.shape[1]).to(torch.int64)
        else:
            slots = self._look_up(resident, places, indices.shape[1]).to(torch.int64)
        self._wait_for_filling()
        return Fetched(*resident.buffers(self._shape), slots.view_as(indices))

    def missing(self, indices: Tensor) -> Tensor | None:
        """Which of the tokens at `indices` [B, R, S] would be fetched from outside now; pads are not."""
        if self._staging is not None:
            return None
        slots = self._settled().slot_of.index_select(0, self._places(indices))
        return (slots < 0).view_as(indices) & (indices >= 0)

    def parts(self, indices: Tensor) -> list[slice] | None:
        """Runs of slots whose tokens fit the arena; None where all do."""
        batch, rows, slots = indices.shape
        if self._resident is None or indices.numel() <= self._resident.arena.fetch_rows:
            return None
        held = self._resident.slot_of.index_select(0, self._places(indices))
        needed = (held < self._resident.arena.fetch_rows) & (indices >= 0).flatten()
        if int(needed.sum()) <= self._resident.arena.fetch_rows:
            return None
        most = self._resident.arena.fetch_rows // (batch * rows)
        if most == 0:
            wanted = f"at least {rows // self._shape.heads}, one for each query head that chooses for itself"
            got = self._resident.arena.fetch_rows // (batch * self._shape.heads)
            raise InvalidInputError("KVStore: arena_tokens", got, wanted)
        return [slice(start, min(start + most, slots)) for start in range(0, slots, most)]

    def outside(self, indices: Tensor, rows: slice = ALL_ROWS) -> Fetched | None:
        """The tokens at `indices` [B, R, S], -1 pads, in the host memory that keeps them; None unless it has all."""
        if self._staging is not None or int(indices.max()) >= self._outside.count:
            return None
        self.wait()
        found, slots = self._outside.rows.at(self._places(indices, rows).cpu())
        seen = found.expand(len(indices), self._shape.heads, *found.shape)
        return Fetched(*self._shape.split(seen), slots.view_as(indices).masked_fill(indices.cpu() < 0, -1))

    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads another token."""
        staging = self._staging  # a worker may build a state while the prompt is copied out
        if staging is not None:
            return staging.read(positions, rows)
        return self._shape.split(self._rows_at(positions, rows))

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some other token."""
        return self.read(positions, rows)[0]

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory that holds keys and values on each tier, spare room and the table of rows included."""
        device = 0 if self._staging is None else self._staging.kept_bytes()["device"]
        if self._resident is not None:
            device += sum(part.numel() * part.element_size() for part in (self._resident.pool, self._resident.slot_of))
        return {"device": device, **self._outside.kept_bytes}

    def renewed(self) -> OffloadedStore:
        """An empty store like this one."""
        return OffloadedStore(self._make_rows, self._make_arena)

    def wait(self) -> None:
        """Wait until what is on its way has arrived; raises what went wrong."""
        self._outside.wait(self.timeline)
        self._wait_for_filling()

    def _wait_for_filling(self) -> None:
        if self._filling is not None:
            with waiting(self.timeline):
                self._filling.result()
            self._filling = None

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
            self._shape = RowShape.of(keys, values)
        self._resident = None
        self._staging = staging
        return staging

    def _copy_out(self, staging: DeviceStore, end: int) -> None:
        """Copy the tokens of a prompt that are not outside yet, up to `end`."""
        self._make_room(self.length)
        start = self._outside.count
        if end > start:
            self._outside.write(staging.keys[:, :, start:end], staging.values[:, :, start:end], self.timeline)

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
        if end > self._outside.count:
            rows = self._shape.by_sequence(resident.newest(self._outside.count, end))
            self._outside.write(*self._shape.split(rows), self.timeline)
        resident.release(end)

    def _make_room(self, end: int) -> None:
        """Room outside for `end` tokens."""
        if self._outside.make_room(self._shape, end, self._expected, self._total) and self._resident is not None:
            self._resident.widen(self._outside.rows.capacity)

    def _places(self, positions: Tensor, rows: slice = ALL_ROWS, *, padded: bool = True) -> Tensor:
        """Where tokens lie outside, int64 [B · R · S]; a pad takes the place of a token of its own head."""
        return self._shape.places(positions, self._outside.rows.capacity, rows, padded=padded).flatten()

    def _look_up(self, resident: ResidentRows, places: Tensor, rows: int) -> Tensor:
        """The pool's rows of the tokens at `places` [n], int32; what is in none is fetched.

        Several of the `rows` rows of choice may name a token where they are more than the heads.
        """
        distinct = rows == self._shape.heads
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
        outer, pool = self._outside.rows, resident.pool
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
        rows = resident.arena.admit(places, resident.slot_of)
        with span(self.timeline, "transfer", "fetch"):
            self._outside.rows.load(places, resident.pool, rows, ascending=True)
        self.misses += len(places)
        self.moved_bytes += len(places) * self.token_bytes
        return rows

    def _rows_at(self, positions: Tensor, rows: slice) -> Tensor:
        """Keys and values [B, R, S, W] at `positions`, read without the arena."""
        self.wait()
        places = self._places(positions, rows)
        found = self._shape.like.new_empty((len(places), self._shape.width))
        everywhere = torch.arange(len(places), device=places.device)
        outside = (positions < self._outside.count).flatten()
        with span(self.timeline, "transfer", "fetch"):
            self._outside.rows.load(places[outside], found, everywhere[outside], ascending=True)
        self.moved_bytes += int(outside.sum()) * self.token_bytes
        if not bool(outside.all()):
            resident = self._settled()
            slots = resident.slot_of.index_select(0, places[~outside]).to(torch.int64)
            found[~outside] = resident.pool.index_select(0, slots)
        return found.view(*positions.shape, self._shape.width)

    def _whole(self, channels: slice) -> Tensor:
        """These channels of every token, [B, H, L, n], read back."""
        self.wait()
        outside = self._outside.count
        with span(self.timeline, "transfer", "fetch"):
            parts = [self._outside.rows.range(0, outside)[..., channels].to(self._shape.like.device, copy=True)]
        self.moved_bytes += parts[0].numel() * parts[0].element_size()
        if outside < self.length:
            parts.append(self._settled().newest(outside, self.length)[..., channels])
        return self._shape.by_sequence(torch.cat(parts, dim=1))


def _count_distinct(slots: Tensor, rows: int) -> int:
    """How many different rows of `rows` there are in slots [n]."""
    named = torch.zeros(rows, dtype=torch.bool, device=slots.device)
    named[slots] = True
    return int(named.sum())
