"""A tensor that grows along one dimension, with room to spare, so that a decode step copies one token and not all."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from torch import Tensor

LEAST_SPARE = 64
SPARE_TOKENS = 512  # of keys and values: the least room behind them


class GrowingTensor:
    """`tensor`, a view of the `used` slots along dimension `dim` of `buffer`, which has room for `capacity`.

    What was appended stays as it is: an older view remains valid. The room is an eighth of what is in use, at least
    `least_spare` and at most `most_spare` slots. `allocate` makes a buffer of a shape; by default it is memory like the
    first one's.
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
        self.dim = dim % tensor.dim() - tensor.dim()  # from the end, so that what is appended may lack the first ones
        self._least_spare, self._most_spare, self._allocate = least_spare, most_spare, allocate

    @property
    def tensor(self) -> Tensor:
        """What is in use."""
        return self.buffer.narrow(self.dim, 0, self.used)

    def append(self, new: Tensor) -> None:
        """Put a tensor of the same shape but for `dim`, or one that broadcasts to it, behind the others."""
        start, count = self.used, new.shape[self.dim]
        if start + count > self.capacity:
            self.reserve(with_spare(start + count, self._least_spare, self._most_spare))
        self.buffer.narrow(self.dim, start, count).copy_(new)
        self.used = start + count

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` slots in all; what is in use stays."""
        if capacity <= self.capacity:
            return
        shape = list(self.buffer.shape)
        shape[self.dim] = capacity
        wider = self.buffer.new_empty(shape) if self._allocate is None else self._allocate(shape)
        wider.narrow(self.dim, 0, self.used).copy_(self.tensor)
        self.buffer, self.capacity = wider, capacity

    def clone(self) -> GrowingTensor:
        """An independent copy, with as much room."""
        other = copy(self)
        other.buffer, other.used, other.capacity = self.buffer.narrow(self.dim, 0, 0), 0, 0
        other.reserve(self.capacity)
        other.append(self.tensor)
        return other


def with_spare(length: int, least: int = LEAST_SPARE, most: int | None = None) -> int:
    """The capacity for `length` slots: an eighth more, at least `least` and at most `most` more."""
    spare = max(least, length // 8)
    return length + (spare if most is None else min(spare, most))
