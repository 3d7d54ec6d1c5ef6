"""The tokens of one layer in host memory or on disk, including those on their way there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..trace.timeline import LayerTimeline, span, waiting
from .background import Pending
from .growing import SPARE_TOKENS, with_spare
from .host import HostRows
from .layer_store import ALL_ROWS, row_places

# Makes rows: heads, tokens per head, elements per row, and a tensor of the dtype.
MakeRows = Callable[[int, int, int, Tensor], HostRows]


@dataclass(frozen=True, eq=False)
class RowShape:
    """A layer's row shape: `batch` sequences of `heads` heads; a row is a key of `key_width` elements and a value.

    `like` is a tensor of their dtype on the model's device.
    """

    batch: int
    heads: int
    key_width: int
    width: int
    like: Tensor

    @classmethod
    def of(cls, keys: Tensor, values: Tensor) -> RowShape:
        """The shape of the rows for keys and values [B, H, n, D]."""
        width = keys.shape[-1] + values.shape[-1]
        return cls(keys.shape[0], keys.shape[1], keys.shape[-1], width, keys.new_empty(0))

    @property
    def token_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * self.like.element_size()

    def places(self, positions: Tensor, capacity: int, rows: slice = ALL_ROWS, *, padded: bool = True) -> Tensor:
        """Places of tokens, int64 [B, R, S], with `capacity` places per head; a pad gets the place of a token."""
        if padded and positions.shape[-1]:
            positions = torch.where(positions < 0, positions.amax(-1, keepdim=True).clamp_(min=0), positions)
        return row_places(positions, self.batch, self.heads, capacity, rows)

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [..., D] of rows [..., W], views."""
        return rows[..., : self.key_width], rows[..., self.key_width :]


class LowerTier:
    """The first `count` tokens of a layer in host memory or on disk; the last ones may still be on their way."""

    def __init__(self, make_rows: MakeRows) -> None:
        self._make_rows = make_rows
        self._rows: HostRows | None = None
        self._writing: Pending[None] | None = None
        self.count = 0

    @property
    def rows(self) -> HostRows:
        """The rows; there must be room for some."""
        assert self._rows is not None
        return self._rows

    @property
    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the rows on each tier, spare room included."""
        return {} if self._rows is None else {self._rows.tier: self._rows.stored_bytes}

    def make_room(self, shape: RowShape, end: int, expected: int, announced: int) -> bool:
        """Make room for `end` tokens, with spare room if more may come; returns whether there was too little.

        The room is for at least `expected` tokens, and for no more than `announced`, if all tokens were announced.
        """
        if self._rows is not None and end <= self._rows.capacity:
            return False
        capacity = max(expected, with_spare(end, SPARE_TOKENS)) if end > announced else announced
        self.wait(None)
        if self._rows is None:
            self._rows = self._make_rows(shape.batch * shape.heads, capacity, shape.width, shape.like)
        else:
            self._rows = self._rows.grown(capacity)
        return True

    def write(self, keys: Tensor, values: Tensor, timeline: LayerTimeline | None) -> None:
        """Begin to offload the next tokens' keys and values [B, H, n, D], concurrently with the model."""
        self.wait(timeline)
        rows, start = self.rows, self.count
        offload = span(timeline, "transfer", "offload")
        self._writing = Pending(
            lambda: rows.write(start, keys, values), (keys, values), stream="transfer", span=offload
        )
        self.count = start + keys.shape[2]

    def wait(self, timeline: LayerTimeline | None) -> None:
        """Wait until all tokens are stored; raises the error of their transfer."""
        if self._writing is not None:
            with waiting(timeline):
                self._writing.result()
            self._writing = None
