"""A tensor that grows along one dimension, with room to spare, so that a decode step copies one token and not all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEAST_SPARE = 64


@dataclass(eq=False)
class GrowingTensor:
    """`tensor`, a view of what is in use, and room behind it along dimension `dim`.

    What was appended stays as it is: an older view remains valid. Bytes of a method's metadata count what is in use;
    the room is at most an eighth of that, or 64 slots.
    """

    tensor: Tensor
    dim: int

    def __post_init__(self) -> None:
        self.used = self.tensor.shape[self.dim]
        self._room = self.tensor

    def append(self, new: Tensor) -> None:
        """Put a tensor of the same shape but for `dim` behind the others."""
        start, room = self.used, self._room
        count = new.shape[self.dim]
        end = start + count
        if end > room.shape[self.dim]:
            shape = list(self.tensor.shape)
            shape[self.dim] = end + max(LEAST_SPARE, end // 8)
            room = self._room = torch.empty(shape, dtype=self.tensor.dtype, device=self.tensor.device)
            room.narrow(self.dim, 0, start).copy_(self.tensor)
        room.narrow(self.dim, start, count).copy_(new)
        self.tensor = room.narrow(self.dim, 0, end)
        self.used = end
