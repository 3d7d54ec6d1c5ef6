"""Space: the bytes in use on a tier, and the error for a request that does not fit, before anything is lost."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # how much memory is free differs by operating system

from ..errors import OutOfSpaceError

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")


class Space:
    """The space of a tier: it counts the bytes in use and refuses requests that do not fit.

    kvviz may use at most `limit_bytes`; None allows all of `free_bytes()`, the bytes that the machine has left. The
    machine counts memory as free until it is written, so bytes taken but not yet written are subtracted. Raises
    OutOfSpaceError with the bytes requested and available.
    """

    def __init__(self, tier: str, limit_bytes: int | None, free_bytes: Callable[[], int]) -> None:
        self.tier, self.limit_bytes = tier, limit_bytes
        self.taken_bytes = 0
        self._free_bytes = free_bytes
        self._unwritten: dict[int, int] = {}  # bytes by lease
        self._names = itertools.count()
        self._lock = threading.RLock()  # garbage collection may end a lease in the thread that takes another

    def take(self, count: int) -> Lease:
        """A lease of `count` bytes."""
        with self._lock:
            left = self._left()
            if count > left:
                limit = "" if self.limit_bytes is None else f" of the limit of {self.limit_bytes:,}"
                raise self._error(count, f"at most {left:,} bytes, which are left{limit}", self.taken_bytes)
            self.taken_bytes += count
            name = next(self._names)
            self._unwritten[name] = count
        return Lease(self, name, count)

    def refusal(self, count: int, why: object) -> OutOfSpaceError:
        """The error for leased bytes that seemed free but were refused by the system; the caller ends the lease."""
        with self._lock:
            wanted = f"fewer: {self._left() + count:,} bytes seemed to be free, but the system says: {why}"
            return self._error(count, wanted, self.taken_bytes - count)

    def _left(self) -> int:
        left = self._free_bytes() - sum(self._unwritten.values())
        return max(left if self.limit_bytes is None else min(left, self.limit_bytes - self.taken_bytes), 0)

    def _error(self, count: int, wanted: str, taken: int) -> OutOfSpaceError:
        got = f"a request for {count:,} bytes, with {taken:,} in use"
        return OutOfSpaceError(f"offload to {self.tier}", got, wanted)

    def _note_written(self, name: int, count: int) -> None:
        with self._lock:
            self._unwritten[name] = max(self._unwritten.get(name, 0) - count, 0)

    def _return(self, name: int, count: int) -> None:
        with self._lock:
            self.taken_bytes -= count
            self._unwritten.pop(name, None)


class Lease:
    """Bytes taken from a Space, given back once, at the latest when nothing refers to the lease any more."""

    def __init__(self, space: Space, name: int, count: int) -> None:
        self._space, self._name = space, name
        self._finalizer = weakref.finalize(self, space._return, name, count)

    def note_written(self, count: int) -> None:
        """Note that `count` more of the bytes are written, so that the machine no longer counts them as free."""
        self._space._note_written(self._name, count)

    def give_back(self) -> None:
        """Give the bytes back."""
        self._finalizer()


def free_memory() -> int:
    """Bytes of memory that can be taken: those free on the machine, or in its container if that is limited to less."""
    return min([int(psutil.virtual_memory().available), *_left_in_groups(CONTROL_GROUPS, OWN_GROUP)])


def _left_in_groups(root: Path, own: Path) -> Iterator[int]:
    """Bytes left below each memory limit of the process's control groups (Linux, version 2), which psutil ignores."""
    try:
        name = next(line for line in own.read_text().splitlines() if line.startswith("0::")).removeprefix("0::")
    except (OSError, StopIteration):
        return
    group = root / name.strip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            return
        try:
            limit = int((folder / "memory.max").read_text())  # "max" means no limit
            used = int((folder / "memory.current").read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        yield limit - used + int(statistics.get("inactive_file", 0))  # the file cache makes room when needed
