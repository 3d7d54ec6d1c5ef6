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
WORDS = (torch.int32, torch.int16, torch.int8)  # widest first; see `_checksums` for why none is wider


class DiskRows(HostRows):
    """Rows [N, W] of any dtype in a file of `folder`, memory-mapped; their checksums [N] stay in memory.

    What is read is verified row by row in the copy that is handed out. The checksum of a row is the sum of its words,
    32 bits each (fewer where the row's bytes are no multiple of four), times random odd numbers of 64 bits, modulo
    2^64. It finds every damage to a single word, and damage to several but with a chance of 2^-32 at most: two words
    differ by less than 2^32, and whatever the other words' numbers are, at most 2^31 of a word's 2^63 possible numbers
    hide its difference behind theirs.

    The file's disk space is reserved before it is mapped, since a mapped write that finds the disk full kills the
    process. (A file system that copies on write may still run out.) The file is removed with the rows.

    Raises OutOfSpaceError where the disk is too small, DamagedOffloadError naming file and token where a read finds
    other bytes than were written, and KVVizError where the folder cannot be written.
    """

    tier = "disk"

    def __init__(
        self, heads: int, capacity: int, width: int, dtype: torch.dtype, space: Space, *, folder: PrivateFolder
    ) -> None:
        self._folder = folder
        super().__init__(heads, capacity, width, dtype, space, pinned=False)
        self._sums = torch.zeros(heads * capacity, dtype=torch.int64)  # that of a row of zeros, as the file has them

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [B, H, n, D] of the tokens from `start` on."""
        count, step = keys.shape[2], self._chunk_tokens
        for first in range(0, count, step):
            some = slice(first, min(first + step, count))
            rows = torch.cat([keys[:, :, some], values[:, :, some]], dim=-1).flatten(0, 1).cpu()
            self._store(start + first, rows, _checksums(rows))

    def read(self, places: Tensor, out: Tensor) -> None:
        """Copy the rows at `places` [n], int64 on the CPU, into `out` [n, W] on the CPU, and verify them there."""
        self._check_size()
        super().read(places, out)
        self._verify(out, places)

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Rows [n, W] of the tokens at `places`, verified, and where in them each lies."""
        found = torch.empty((places.numel(), self.rows.shape[1]), dtype=self.rows.dtype)
        self.read(places.flatten(), found)
        return found, torch.arange(places.numel()).view_as(places)

    def range(self, start: int, end: int) -> Tensor:
        """Rows [heads, end - start, W] of the tokens in a range: a copy, verified."""
        whole = self.rows.new_empty((self.heads, end - start, self.rows.shape[1]))
        for first, rows, _ in self._verified(start, end):
            whole[:, first - start : first - start + rows.shape[1]] = rows
        return whole

    def grown(self, capacity: int) -> DiskRows:
        """The same rows with room for more tokens; this one must not be used any more."""
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
        """Put rows [heads, n, W] and their checksums [heads, n] in their place."""
        places = slice(start, start + rows.shape[1])
        self.rows.view(self.heads, self.capacity, -1)[:, places] = rows
        self._sums.view(self.heads, self.capacity)[:, places] = sums

    def _verified(self, start: int, end: int) -> Iterator[tuple[int, Tensor, Tensor]]:
        """The first token, a verified copy of the rows [heads, n, W] and their checksums, for some tokens at a time."""
        self._check_size()
        places = torch.arange(self.heads * self.capacity).view(self.heads, self.capacity)
        rows_of, sums_of = self.rows.view(self.heads, self.capacity, -1), self._sums.view(self.heads, self.capacity)
        for first in range(start, end, self._chunk_tokens):
            some = slice(first, min(first + self._chunk_tokens, end))
            rows = rows_of[:, some].clone(memory_format=torch.contiguous_format)
            self._verify(rows.flatten(0, 1), places[:, some].flatten())
            yield first, rows, sums_of[:, some]

    def _verify(self, rows: Tensor, places: Tensor) -> None:
        """Compare rows [n, W] with the checksums at `places` [n]."""
        wrong = _checksums(rows) != self._sums.index_select(0, places)
        if bool(wrong.any()):
            place = int(places[wrong][0])
            raise DamagedOffloadError(
                f"read of offloaded keys and values from {self.path}",
                f"other bytes than were written, first for token {place % self.capacity} of head "
                f"{place // self.capacity} of {self.heads} ({int(wrong.sum())} of the {len(places)} rows read)",
                "rows that match their checksums: nothing else may write to this file, and the disk must be sound",
            )

    def _check_size(self) -> None:
        """Raise DamagedOffloadError where the file was cut short: reading its mapping would kill the process."""
        try:
            found = self.path.stat().st_size
        except FileNotFoundError:  # the mapping outlives the file's name
            return
        if found < self.stored_bytes:
            raise DamagedOffloadError(
                f"read of offloaded keys and values from {self.path}",
                f"a file of {found:,} bytes: token {found // (self.stored_bytes // self.capacity)} and later ones",
                f"{self.stored_bytes:,} bytes: nothing else may write to this file",
            )

    def _allocate(self, count: int, width: int, dtype: torch.dtype, pinned: bool) -> Tensor:
        size = count * width * dtype.itemsize
        try:
            self.path = self._folder.new_file()
            mapped = mapped_zeros(self.path, size)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise self._space.refusal(size, error) from error
            folder = f"offload to disk under {self._folder.parent}"
            raise KVVizError(
                folder, error, "a folder that can be written; KVStore(folder=...) names another"
            ) from error
        self._remove_file = weakref.finalize(self, remove_file, self.path, os.getpid())
        self._lease.note_written(size)  # reserved: the disk does not count it as free any more
        return torch.from_numpy(mapped).view(dtype).view(count, width)


def free_disk(folder: PrivateFolder) -> int:
    """Bytes that this user may still write where the folder is."""
    return shutil.disk_usage(folder.parent).free


def mapped_zeros(path: Path, size: int) -> np.memmap[tuple[int], np.dtype[np.uint8]]:
    """A new file of `size` zeros, mapped; raises OSError, and leaves no file, where there is no room for it."""
    try:
        reserve(path, size)
        return np.memmap(path, dtype=np.uint8, mode="r+", shape=(size,))
    except BaseException:
        remove_file(path)
        raise


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` zeros whose disk space is really taken; raises OSError where it is not there."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, size)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # the file system has none
                    raise
        for start in range(0, size, len(ZEROS)):
            file.write(ZEROS[: size - start])
        file.flush()
        os.fsync(descriptor)  # some file systems find out only now


def _checksums(rows: Tensor) -> Tensor:
    """Checksums [...] of contiguous rows [..., W] on the CPU: 64-bit sums of words times odd numbers.

    Words of 32 bits leave room above them: with words of 64 bits, two changes of the highest bit would cancel out. One
    product of integers for all rows: 0.06 ms for 1024 rows of 512 bytes, against 0.25 ms of CRC-32 row by row (EPYC).
    """
    width = rows.shape[-1] * rows.element_size()
    word = next(word for word in WORDS if width % word.itemsize == 0)
    words = rows.view(word).to(torch.int64)
    return words.flatten(0, -2).mv(_weights(words.shape[-1])).view(words.shape[:-1])


@cache
def _weights(count: int) -> Tensor:
    """Odd numbers of 64 bits [count], the same ones in every process."""
    random = np.random.default_rng(0)
    return torch.from_numpy(random.integers(-(2**63), 2**63, count, dtype=np.int64) | 1)
