"""OffloadedStore: one layer's keys and values, with most tokens in host memory or on disk."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..trace.timeline import span
from .arena import Arena
from .device_pool import DevicePool
from .device_store import DeviceStore
from .layer_store import ALL_ROWS, Fetched, LayerStore
from .lower_tier import LowerTier, MakeRows, RowShape

OFFLOAD_INTERVAL = 64  # generated tokens that are offloaded together


class OffloadedStore(LayerStore):
    """A store with the sinks and newest tokens on the device, and all others on a lower tier; it fetches what is read.

    While a prompt is attended to, all of it is on the device, since exact attention reads all tokens; `offload_chunk`
    and `offload` copy it out, concurrently with the model. After `offload`, the device holds one pool of rows: the
    arena, which keeps to its limit, the sinks and the newest tokens. Tokens come back bit for bit as they were.

    If the tokens of a step do not fit the arena at once, they are fetched in `parts`.
    """

    offloads = True

    def __init__(self, make_rows: MakeRows, make_arena: Callable[[int, int, torch.device, int | None], Arena]) -> None:
        self._make_rows, self._make_arena = make_rows, make_arena
        self._expected = 0
        self._total = 0  # tokens announced in all, or 0
        self._staging: DeviceStore | None = None  # the whole prompt, while it is attended to
        self._lower = LowerTier(make_rows)
        self._pool: DevicePool | None = None  # what stays on the device, once the prompt is offloaded
        self._shape = RowShape(0, 0, 0, 0, torch.empty(0))

    @property
    def keys(self) -> Tensor:
        """All keys, [B, H, L, D]; those that are not on the device are fetched."""
        return self._staging.keys if self._staging is not None else self._fetch_all(0)

    @property
    def values(self) -> Tensor:
        """All values, [B, H, L, D]; those that are not on the device are fetched."""
        return self._staging.values if self._staging is not None else self._fetch_all(1)

    @property
    def batch(self) -> int:
        """Number of sequences in the batch, once tokens are stored."""
        return self._shape.batch

    @property
    def key_bytes(self) -> int:
        """Bytes of one token's keys in all KV heads of one sequence."""
        return self._shape.heads * self._shape.key_width * self._shape.like.element_size()

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value in one KV head."""
        return self._shape.token_bytes

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens, during a prefill."""
        self._expected = max(self._expected, capacity)
        self._stage(keys, values)

    def expect(self, tokens: int) -> None:
        """Announce how many tokens will be stored in all; the lower tier makes room for them, and no more."""
        self._total = tokens

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""
        count = keys.shape[2]
        if count > 1 or self._pool is None:
            self._stage(keys, values).append(keys, values)
        else:
            self._make_room(self.length + 1)  # a token on the device needs its place too
            self._end_step(self._pool)
            self._pool.append(torch.cat([keys, values], dim=-1).flatten(0, 1))
            self._pool.arena.begin_step(self._pool.slot_of)
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

    def offload_chunk(self) -> None:
        """Offload a chunk of a prompt before the next one is stored."""
        if self._staging is not None:
            self._offload_staging(self._staging, self.length)
            self._staging = None

    def offload(self, newest: int, pinned: Tensor | None = None, copied: int = 0) -> None:
        """Offload all but the `newest` tokens; those at the positions `pinned` [B, s] stay on the device as well.

        The oldest `copied` of the newest tokens are on both tiers. The copy runs concurrently with the model. A later
        call offloads the tokens generated since.
        """
        if self._staging is None:
            self._end_step(self._filled_pool)
            self._offload_generated(newest, copied)
            return
        staging, start = self._staging, max(self.length - newest, 0)
        self._offload_staging(staging, min(start + copied, self.length))
        heads, device = self._shape.batch * self._shape.heads, self._shape.like.device
        arena = self._make_arena(heads, self.length, device, self.step_tokens)
        sizes = {"capacity": self._lower.rows.capacity, "spare": 2 * OFFLOAD_INTERVAL}
        self._pool = DevicePool(self._shape, arena, staging, start, pinned, **sizes)
        self._staging = None

    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The tokens at `indices` [B, R, S], -1 pads, on the device; valid until the next call."""
        if self._staging is not None:
            return self._staging.fetch(indices, padded=padded)
        pool = self._filled_pool
        places = self._places(indices, padded=padded)
        if padded:  # no token is fetched for a pad
            real = indices.flatten() >= 0
            slots = torch.full(real.shape, -1, device=places.device)
            slots[real] = self._look_up(pool, places[real], indices.shape[1]).to(torch.int64)
        else:
            slots = self._look_up(pool, places, indices.shape[1]).to(torch.int64)
        pool.wait(self.timeline)
        return Fetched(*pool.buffers(), slots.view_as(indices))

    def missing(self, indices: Tensor) -> Tensor | None:
        """Whether each token at `indices` [B, R, S] would be fetched from the lower tier now; pads are not."""
        if self._staging is not None:
            return None
        slots = self._filled_pool.slots_at(self._places(indices))
        return (slots < 0).view_as(indices) & (indices >= 0)

    def parts(self, indices: Tensor) -> list[slice] | None:
        """Slices of slots whose tokens fit the arena; None if all fit at once."""
        if self._pool is None or indices.numel() <= self._pool.arena.fetch_rows:
            return None
        return self._pool.parts(self._places(indices), indices)

    def on_host(self, indices: Tensor, rows: slice = ALL_ROWS) -> Fetched | None:
        """The tokens at `indices` [B, R, S], -1 pads, in host memory; None unless the lower tier has them all.

        The indices are moved to the host, and the rows as well if the lower tier is a disk.
        """
        if self._staging is not None or int(indices.max()) >= self._lower.count:
            return None
        self.wait()
        indices = self.to_host(indices)
        stored, slots = self._lower.rows.at(self._places(indices, rows))
        if self._lower.rows.tier == "disk":
            self.moved_bytes += stored.numel() * stored.element_size()
        shared = stored.expand(len(indices), self._shape.heads, *stored.shape)
        return Fetched(*self._shape.split(shared), slots.view_as(indices).masked_fill(indices < 0, -1))

    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads zeros."""
        staging = self._staging  # read once: a worker may build a state while the prompt is offloaded
        if staging is not None:
            return staging.read(positions, rows)
        return self._shape.split(self._rows_at(positions, rows))

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory for keys and values on each tier, spare room and the table of rows included."""
        device = 0 if self._staging is None else self._staging.kept_bytes()["device"]
        device += 0 if self._pool is None else self._pool.stored_bytes
        return {"device": device, **self._lower.kept_bytes}

    def renewed(self) -> OffloadedStore:
        """An empty store with the same settings."""
        return OffloadedStore(self._make_rows, self._make_arena)

    def wait(self) -> None:
        """Wait until all transfers have finished; raises their errors."""
        self._lower.wait(self.timeline)
        if self._pool is not None:
            self._pool.wait(self.timeline)

    @property
    def _filled_pool(self) -> DevicePool:
        assert self._pool is not None, "a decode step before the prompt was offloaded"
        return self._pool

    def _stage(self, keys: Tensor, values: Tensor) -> DeviceStore:
        """The store of a prompt on the device, with all tokens so far."""
        if self._staging is not None:
            return self._staging
        staging = DeviceStore()
        staging.reserve(keys, values, max(self._expected, self.length + keys.shape[2]))
        if self.length:
            staging.append(self.keys, self.values)
        else:
            self._shape = RowShape.of(keys, values)
        self._pool = None
        self._staging = staging
        return staging

    def _offload_staging(self, staging: DeviceStore, end: int) -> None:
        """Offload the prompt's tokens before position `end` that the lower tier does not have yet."""
        self._make_room(self.length)
        start = self._lower.count
        if end > start:
            self._lower.write(staging.keys[:, :, start:end], staging.values[:, :, start:end], self.timeline)

    def _offload_generated(self, newest: int, copied: int) -> None:
        """Offload all generated tokens but the `newest`, at least OFFLOAD_INTERVAL at a time; copy each if `copied`."""
        pool = self._filled_pool
        if newest + 2 * OFFLOAD_INTERVAL > pool.ring:
            self.wait()
            pool.widen_ring(2 * (newest + OFFLOAD_INTERVAL))
        end = self.length - newest
        leaving = end - pool.newest_start >= OFFLOAD_INTERVAL
        written = end + copied if copied else end if leaving else 0
        if leaving or written > self._lower.count:
            self.wait()
        if written > self._lower.count:
            rows = pool.newest(self._lower.count, written).unflatten(0, (-1, self._shape.heads))  # [B, H, n, W]
            self._lower.write(*self._shape.split(rows), self.timeline)
        if leaving:
            pool.evict(end)

    def _make_room(self, end: int) -> None:
        """Make room on the lower tier for `end` tokens."""
        if self._lower.make_room(self._shape, end, self._expected, self._total) and self._pool is not None:
            self._pool.widen(self._lower.rows.capacity)

    def _places(self, positions: Tensor, rows: slice = ALL_ROWS, *, padded: bool = True) -> Tensor:
        """Places of tokens on the lower tier, int64 [B · R · S]; a pad gets the place of a token of the same head."""
        return self._shape.places(positions, self._lower.rows.capacity, rows, padded=padded).flatten()

    def _look_up(self, pool: DevicePool, places: Tensor, rows: int) -> Tensor:
        """The pool's rows of the tokens at `places` [n], int32; missing tokens are fetched.

        If there are more selection heads (`rows`) than KV heads, several of them may name the same token.
        """
        distinct = rows == self._shape.heads
        slots = pool.slots_at(places)
        pool.arena.look_up(places, slots)
        absent = slots < 0
        count = int(absent.sum())
        if count:
            missing = places if count == len(places) else places[absent]
            rows_of_missing = self._fetch_into(pool, missing if distinct else missing.unique())
            slots = rows_of_missing.to(slots.dtype) if distinct and missing is places else pool.slots_at(places)
        self.lookups += pool.count_copies(slots, distinct=distinct)
        return slots

    def _end_step(self, pool: DevicePool) -> None:
        """Keep the tokens that the arena chooses for later steps; missing ones are fetched, concurrently."""
        filled = pool.end_step(self._lower, self.timeline)
        self.filled_bytes += filled
        self.moved_bytes += filled

    def _fetch_into(self, pool: DevicePool, places: Tensor) -> Tensor:
        """Fetch the tokens at these distinct places into the arena; returns their rows."""
        self.wait()
        rows = pool.arena.admit(places, pool.slot_of)
        with span(self.timeline, "transfer", "fetch"):
            self._lower.rows.load(places, pool.rows, rows, ascending=True)
        self.misses += len(places)
        self.moved_bytes += len(places) * self.token_bytes
        return rows

    def _rows_at(self, positions: Tensor, rows: slice) -> Tensor:
        """Rows [B, R, S, W] of the tokens at `positions`, 0 for pads; fetched unless the device has a copy."""
        self.wait()
        places, pool = self._places(positions, rows), self._pool
        slots = torch.full_like(places, -1) if pool is None else pool.slots_at(places).to(torch.int64)
        result = self._shape.like.new_zeros((len(places), self._shape.width))
        real = positions.flatten() >= 0
        copied = (real & (slots >= 0)).nonzero()[:, 0]
        if pool is not None and len(copied):
            result[copied] = pool.rows.index_select(0, slots[copied])
        absent = (real & (slots < 0)).nonzero()[:, 0]
        if len(absent):
            with span(self.timeline, "transfer", "fetch"):
                self._lower.rows.load(places[absent], result, absent, ascending=True)
            self.moved_bytes += len(absent) * self.token_bytes
        return result.view(*positions.shape, self._shape.width)

    def _fetch_all(self, which: int) -> Tensor:
        """Keys (0) or values (1) of all tokens, [B, H, L, D], fetched to the device."""
        self.wait()
        count = self._lower.count
        with span(self.timeline, "transfer", "fetch"):
            rows = self._lower.rows.range(0, count)
            parts = [self._shape.split(rows)[which].to(self._shape.like.device, copy=True)]
        read = rows if self._lower.rows.tier == "disk" else parts[0]  # a disk reads whole rows
        self.moved_bytes += read.numel() * read.element_size()
        if count < self.length:
            parts.append(self._shape.split(self._filled_pool.newest(count, self.length))[which])
        whole: Tensor = torch.cat(parts, dim=1).unflatten(0, (-1, self._shape.heads))
        return whole
