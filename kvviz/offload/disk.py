"""Rows of keys and values in a memory-mapped file, each with a checksum."""

from __future__ import annotations

import errno
import os
import shutil
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DamagedOffloadError, KVVizError
from .folders import PrivateFolder, remove_file
from .host import CHUNK_ROWS, HostRows
from .space import Space

NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.ENOMEM, getattr(errno, "EDQUOT", errno.ENOSPC))
ZEROS = bytes(1 << 20)
WORDS = (torch.int32, torch.int16, torch.int8)  # widest first; `_checksums` explains why none is wider


class DiskRows(HostRows):
    """Rows [N, W] of any dtype in a memory-mapped file in `folder`; their checksums [N] stay in memory.

    Each row is verified in the copy that a read returns. The checksum of a row is the sum of its words, 32 bits each
    (fewer if the row's bytes are not a multiple of four), times random odd factors of 64 bits, modulo 2^64. It detects
    any damage to a single word. Damage to several words is missed with a probability of at most 2^-32: two words differ
    by less than 2^32 and, whatever the other words' factors are, at most 2^31 of a word's 2^63 possible factors cancel
    the difference.

    The file's disk space is reserved before it is mapped, because a mapped write to a full disk kills the process. (A
    file system that copies on write may still run out of space.) The file is removed with the rows.

    Raises OutOfSpaceError if the disk is too small, DamagedOffloadError with file and token if a read finds other bytes
    than were written, and KVVizError if the folder is not writable.
    """

    tier = "disk"

    def __init__(
        self, heads: int, capacity: int, width: int, dtype: torch.dtype, space: Space, *, folder: PrivateFolder
    ) -> None:
        self._folder = folder
        super().__init__(heads, capacity, width, dtype, space, pinned=False)
        self._sums = torch.zeros(heads * capacity, dtype=torch.int64)  # 0 is the checksum of a row of zeros

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values [B, H, n, D] of the tokens from `start` on."""
        count, step = keys.shape[2], self._chunk_tokens
        for first in range(0, count, step):
            chunk = slice(first, min(first + step, count))
            rows = torch.cat([keys[:, :, chunk], values[:, :, chunk]], dim=-1).flatten(0, 1).cpu()
            self._store(start + first, rows, _checksums(rows))

    def read(self, places: Tensor, out: Tensor) -> None:
        """Copy the rows at `places` [n], int64 on the CPU, into `out` [n, W] on the CPU, and verify them there."""
        self._check_size()
        super().read(places, out)
        self._verify(out, places)

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Verified rows [n, W] of the tokens at `places`, and the index of each token's row in them."""
        rows = torch.empty((places.numel(), self.rows.shape[1]), dtype=self.rows.dtype)
        self.read(places.flatten(), rows)
        return rows, torch.arange(places.numel()).view_as(places)

    def range(self, start: int, end: int) -> Tensor:
        """A verified copy of the rows [heads, end - start, W] of the tokens from `start` to `end`."""
        whole = self.rows.new_empty((self.heads, end - start, self.rows.shape[1]))
        for first, rows, _ in self._verified(start, end):
            whole[:, first - start : first - start + rows.shape[1]] = rows
        return whole

    def grown(self, capacity: int) -> DiskRows:
        """The same rows with room for more tokens; this object must not be used any more."""
        wider = DiskRows(self.heads, capacity, self.rows.shape[1], self.rows.dtype, self._space, folder=self._folder)
        try:
            for first, rows, sums in self._verified(0, self.capacity):
                wider._store(first, rows, sums)
        except BaseException:
            wider.close()
            raise
        self.close()
        return wider

    def close(self) -> None:
        """Remove the file."""
        self._remove_file()
        super().close()

    @property
    def _chunk_tokens(self) -> int:
        return max(1, CHUNK_ROWS // self.heads)

    def _store(self, start: int, rows: Tensor, sums: Tensor) -> None:
        """Store rows [heads, n, W] and their checksums [heads, n], from token `start` on."""
        places = slice(start, start + rows.shape[1])
        self.rows.view(self.heads, self.capacity, -1)[:, places] = rows
        self._sums.view(self.heads, self.capacity)[:, places] = sums

    def _verified(self, start: int, end: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each chunk of tokens: the first one, a verified copy of the rows [heads, n, W], and their checksums."""
        self._check_size()
        places = torch.arange(self.heads * self.capacity).view(self.heads, self.capacity)
        rows_of, sums_of = self.rows.view(self.heads, self.capacity, -1), self._sums.view(self.heads, self.capacity)
        for first in range(start, end, self._chunk_tokens):
            chunk = slice(first, min(first + self._chunk_tokens, end))
            rows = rows_of[:, chunk].clone(memory_format=torch.contiguous_format)
            self._verify(rows.flatten(0, 1), places[:, chunk].flatten())
            yield first, rows, sums_of[:, chunk]

    def _verify(self, rows: Tensor, places: Tensor) -> None:
        """Raise DamagedOffloadError if rows [n, W] do not match the checksums at `places` [n]."""
        damaged = _checksums(rows) != self._sums.index_select(0, places)
        if bool(damaged.any()):
            place = int(places[damaged][0])
            raise DamagedOffloadError(
                f"read of offloaded keys and values from {self.path}",
                f"other bytes than were written, first for token {place % self.capacity} of head "
                f"{place // self.capacity} of {self.heads} ({int(damaged.sum())} of the {len(places)} rows read)",
                "rows that match their checksums: no other program may write to this file, and the disk must be intact",
            )

    def _check_size(self) -> None:
        """Raise DamagedOffloadError if the file was truncated: reading its mapping would kill the process."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:  # the mapping outlives the file's name
            return
        if size < self.stored_bytes:
            first = size // (self.stored_bytes // self.capacity)
            raise DamagedOffloadError(
                f"read of offloaded keys and values from {self.path}",
                f"a file of {size:,} bytes: token {first} and later ones are missing",
                f"{self.stored_bytes:,} bytes: no other program may write to this file",
            )

    def _allocate(self, count: int, width: int, dtype: torch.dtype, pinned: bool) -> Tensor:
        size = count * width * dtype.itemsize
        try:
            self.path = self._folder.new_file()
            mapped = mapped_zeros(self.path, size)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise self._space.refusal(size, error) from error
            operation = f"offload to disk under {self._folder.parent}"
            raise KVVizError(operation, error, "a writable folder; choose one by KVStore(folder=...)") from error
        self._remove_file = weakref.finalize(self, remove_file, self.path, os.getpid())
        self._lease.note_written(size)  # reserved: the disk no longer counts it as free
        return torch.from_numpy(mapped).view(dtype).view(count, width)


def free_disk(folder: PrivateFolder) -> int:
    """Bytes that this user may still write to the disk of the folder."""
    return shutil.disk_usage(folder.parent).free


def mapped_zeros(path: Path, size: int) -> np.memmap[tuple[int], np.dtype[np.uint8]]:
    """A new mapped file of `size` zeros. Raises OSError, and leaves no file, if there is too little space."""
    try:
        reserve(path, size)
        return np.memmap(path, dtype=np.uint8, mode="r+", shape=(size,))
    except BaseException:
        remove_file(path)
        raise


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` zeros and allocate its disk space. Raises OSError if there is too little."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, size)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # not supported there
                    raise
        for start in range(0, size, len(ZEROS)):
            file.write(ZEROS[: size - start])
        file.flush()
        os.fsync(descriptor)  # some file systems notice a full disk only now


def _checksums(rows: Tensor) -> Tensor:
    """Checksums [...] of contiguous rows [..., W] on the CPU: 64-bit sums of words times odd factors.

    Words have 32 of the 64 bits; with words of 64 bits, changes of the highest bit in two words would cancel out. One
    integer product for all rows: 0.06 ms for 1024 rows of 512 bytes, against 0.25 ms for CRC-32 row by row (EPYC).
    """
    width = rows.shape[-1] * rows.element_size()
    word = next(word for word in WORDS if width % word.itemsize == 0)
    words = rows.view(word).to(torch.int64)
    return words.flatten(0, -2).mv(_weights(words.shape[-1])).view(words.shape[:-1])


@cache
def _weights(count: int) -> Tensor:
    """Random odd factors of 64 bits [count], the same in all processes."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(-(2**63), 2**63, count, dtype=np.int64) | 1)
