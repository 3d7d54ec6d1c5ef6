"""A tensor that grows along one dimension, with room to spare, so that a decode step copies one token and not all."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_SPARE = 64
SPARE_TOKENS = 512  # of keys and values: the least room behind them


class GrowingTensor:
    """`tensor`, a view of the `used` slots along dimension `dim`, and room behind them.

    What was appended stays as it is: an older view remains valid. Bytes of a method's metadata count what is in use;
    the room is at most an eighth of that, or 64 slots.
    """

    def __init__(self, tensor: Tensor, dim: int) -> None:
        self.dim = dim
        self.used = tensor.shape[dim]
        self._room = tensor
        self._before = (slice(None),) * dim

    @property
    def tensor(self) -> Tensor:
        """What is in use."""
        return self._room.narrow(self.dim, 0, self.used)

    def append(self, new: Tensor) -> None:
        """Put a tensor of the same shape but for `dim` behind the others, in their dtype."""
        start = self.used
        end = start + new.shape[self.dim]
        if end > self._room.shape[self.dim]:
            shape = list(self._room.shape)
            shape[self.dim] = end + max(LEAST_SPARE, end // 8)
            room = torch.empty(shape, dtype=self._room.dtype, device=self._room.device)
            room.narrow(self.dim, 0, start).copy_(self.tensor)
            self._room = room
        self._room[(*self._before, slice(start, end))] = new
        self.used = end
