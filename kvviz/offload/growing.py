"""A tensor that grows along one dimension, with spare room, so that a decode step copies only the new token."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from torch import Tensor

LEAST_SPARE = 64
SPARE_TOKENS = 512  # the least spare room of keys and values


class GrowingTensor:
    """A growing tensor: `tensor` is a view of the `used` slots along `dim` of `buffer`, which has `capacity` slots.

    Appended slots never change, so that an older view remains valid. The spare room is an eighth of the used slots, at
    least `least_spare` and at most `most_spare`. `allocate` makes a buffer of a given shape; by default its memory is
    like the first tensor's.
    """

    def __init__(
        self,
        tensor: Tensor,
        dim: int,
        *,
        least_spare: int = LEAST_SPARE,
        most_spare: int | None = None,
        allocate: Callable[[list[int]], Tensor] | None = None,
    ) -> None:
        self.buffer = tensor
        self.used = self.capacity = tensor.shape[dim]
        self.dim = dim % tensor.dim() - tensor.dim()  # from the end, since appended tensors may lack leading dimensions
        self._least_spare, self._most_spare, self._allocate = least_spare, most_spare, allocate

    @property
    def tensor(self) -> Tensor:
        """The slots in use, a view."""
        return self.buffer.narrow(self.dim, 0, self.used)

    def append(self, new: Tensor) -> None:
        """Append a tensor of the same shape except along `dim`, or one that broadcasts to it."""
        start, count = self.used, new.shape[self.dim]
        if start + count > self.capacity:
            self.reserve(with_spare(start + count, self._least_spare, self._most_spare))
        self.buffer.narrow(self.dim, start, count).copy_(new)
        self.used = start + count

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` slots in all; the slots in use stay."""
        if capacity <= self.capacity:
            return
        shape = list(self.buffer.shape)
        shape[self.dim] = capacity
        wider = self.buffer.new_empty(shape) if self._allocate is None else self._allocate(shape)
        wider.narrow(self.dim, 0, self.used).copy_(self.tensor)
        self.buffer, self.capacity = wider, capacity

    def clone(self) -> GrowingTensor:
        """An independent copy with the same capacity."""
        clone = copy(self)
        clone.buffer, clone.used, clone.capacity = self.buffer.narrow(self.dim, 0, 0), 0, 0
        clone.reserve(self.capacity)
        clone.append(self.tensor)
        return clone


def with_spare(length: int, least: int = LEAST_SPARE, most: int | None = None) -> int:
    """The capacity for `length` slots: an eighth more, at least `least` and at most `most` more."""
    spare = max(least, length // 8)
    return length + (spare if most is None else min(spare, most))
