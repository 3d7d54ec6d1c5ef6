"""How many bytes a tier may take, and the error that says so before anything is lost."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from ..errors import OutOfSpaceError


class Space:
    """Counts the bytes taken of a tier and refuses more than there are.

    `limit_bytes` bounds what kvviz may take, None leaves it at `free_bytes()`, which says how many bytes the machine
    has left. Raises OutOfSpaceError, naming the bytes asked and had.
    """

    def __init__(self, tier: str, limit_bytes: int | None, free_bytes: Callable[[], int]) -> None:
        self.tier, self.limit_bytes = tier, limit_bytes
        self.taken_bytes = 0
        self._free_bytes = free_bytes
        self._lock = threading.Lock()

    def take(self, count: int) -> Lease:
        """A lease of so many bytes."""
        with self._lock:
            left = self._free_bytes()
            if self.limit_bytes is not None:
                left = min(left, self.limit_bytes - self.taken_bytes)
            if count > left:
                raise OutOfSpaceError(
                    f"offload to {self.tier}",
                    f"{count:,} bytes asked, beside {self.taken_bytes:,} taken",
                    f"at most {left:,} bytes, which is what is left"
                    + ("" if self.limit_bytes is None else f" of the limit of {self.limit_bytes:,}"),
                )
            self.taken_bytes += count
        return Lease(self, count)

    def _return(self, count: int) -> None:
        with self._lock:
            self.taken_bytes -= count


class Lease:
    """Bytes taken of a Space, given back once, at the latest when nothing holds the lease any more."""

    def __init__(self, space: Space, count: int) -> None:
        self._finalizer = weakref.finalize(self, space._return, count)

    def give_back(self) -> None:
        """Give the bytes back."""
        self._finalizer()
