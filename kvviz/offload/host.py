"""Rows of keys and values in host memory."""

from __future__ import annotations

import torch
from torch import Tensor

from .space import Space

CHUNK_ROWS = 1024  # rows copied at once, few enough to be in the processor's cache for the second copy


class HostRows:
    """Rows [N, W] in host memory, pinned if the device is a GPU, so that copies run concurrently with its work.

    Row b·H·capacity + h·capacity + p holds token p of head h of sequence b: its key, then its value. Raises
    OutOfSpaceError if there is too little memory.
    """

    tier = "host"

    def __init__(
        self, heads: int, capacity: int, width: int, dtype: torch.dtype, space: Space, *, pinned: bool
    ) -> None:
        self.heads, self.capacity = heads, capacity
        self._space = space
        self._lease = space.take(heads * capacity * width * dtype.itemsize)
        try:
            self.rows = self._allocate(heads * capacity, width, dtype, pinned)
        except BaseException:  # a stored error would keep the lease alive
            self._lease.give_back()
            raise

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values [B, H, n, D] of the tokens from `start` on."""
        width, end = keys.shape[-1], start + keys.shape[2]
        tokens = self.rows.view(self.heads, self.capacity, -1)[:, start:end]
        tokens[..., :width] = keys.flatten(0, 1)
        tokens[..., width:] = values.flatten(0, 1)
        self._lease.note_written(tokens.numel() * tokens.element_size())

    def load(self, places: Tensor, pool: Tensor, slots: Tensor, *, ascending: bool = False) -> None:
        """Copy the rows at `places` [n] into `pool` [N, W], on any device, at `slots` [n].

        `ascending` promises that the slots ascend, so that consecutive slots are filled in one copy.
        """
        if pool.is_cuda:
            rows = torch.empty((len(places), pool.shape[1]), dtype=pool.dtype, pin_memory=True)
            self.read(places.cpu(), rows)
            pool.index_copy_(0, slots, rows.to(pool.device, non_blocking=True))
            return
        if ascending and len(slots):
            numbers = slots.numpy()  # reads the first and the last in a fifth of torch's time
            first = numbers.item(0)
            if numbers.item(-1) - first == len(numbers) - 1:
                self.read(places, pool.narrow(0, first, len(numbers)))
                return
        scratch = pool.new_empty((min(CHUNK_ROWS, len(places)), pool.shape[1]))
        for start in range(0, len(places), CHUNK_ROWS):
            chunk = places[start : start + CHUNK_ROWS]
            self.read(chunk, scratch[: len(chunk)])
            pool.index_copy_(0, slots[start : start + CHUNK_ROWS], scratch[: len(chunk)])

    def read(self, places: Tensor, out: Tensor) -> None:
        """Copy the rows at `places` [n], int64 on the CPU, into `out` [n, W] on the CPU."""
        torch.index_select(self.rows, 0, places, out=out)

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [N, W] on the CPU, and the index in them of each token at `places`, int64 on the CPU."""
        return self.rows, places

    def range(self, start: int, end: int) -> Tensor:
        """Rows [heads, end - start, W] of the tokens from `start` to `end`, a view."""
        return self.rows.view(self.heads, self.capacity, -1)[:, start:end]

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rows, spare room included."""
        return self.rows.numel() * self.rows.element_size()

    def grown(self, capacity: int) -> HostRows:
        """The same rows with room for more tokens; this object must not be used any more."""
        width = self.rows.shape[1]
        wider = type(self)(self.heads, capacity, width, self.rows.dtype, self._space, pinned=self.rows.is_pinned())
        wider.rows.view(self.heads, capacity, width)[:, : self.capacity] = self.range(0, self.capacity)
        wider._lease.note_written(self.stored_bytes)
        self.close()
        return wider

    def close(self) -> None:
        """Free the memory."""
        self.rows = self.rows.new_empty((0, self.rows.shape[1]))  # a slice would keep the memory
        self._lease.give_back()

    def _allocate(self, count: int, width: int, dtype: torch.dtype, pinned: bool) -> Tensor:
        try:
            rows = torch.empty(count, width, dtype=dtype, pin_memory=pinned)
        except RuntimeError as error:  # raised by torch if the system refuses
            raise self._space.refusal(count * width * dtype.itemsize, error) from error
        if pinned:
            self._lease.note_written(count * width * dtype.itemsize)  # pinned memory is allocated at once
        return rows
