"""DeviceStore: the keys and values of one layer on the model's device."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .growing import SPARE_TOKENS, GrowingTensor
from .layer_store import ALL_ROWS, Fetched, LayerStore, row_places, rows_of

SPARE_AFTER_RETAIN = 64  # a store that drops tokens is small: more spare room would undo the saving


class DeviceStore(LayerStore):
    """The growing keys and values of one layer, with spare room, so that a decode step copies only the new token.

    `DynamicCache` concatenates instead, and so copies all keys and values at each step. `retain` drops tokens and frees
    their memory; the remaining tokens move to other slots, which `slots` gives. `length` counts all tokens ever stored,
    `used` the slots in use.
    """

    def __init__(self) -> None:
        self._stored: tuple[GrowingTensor, GrowingTensor] | None = None  # keys and values [B, H, used, D]
        self._positions: GrowingTensor | None = None  # [B, H, used], ascending, may repeat; None: slot i is token i

    @property
    def key_buffer(self) -> Tensor:
        """Keys and the spare room after them, [B, H, capacity, D]; valid up to `used`."""
        return self._grown[0].buffer

    @property
    def value_buffer(self) -> Tensor:
        """Values and the spare room after them, [B, H, capacity, D]; valid up to `used`."""
        return self._grown[1].buffer

    @property
    def keys(self) -> Tensor:
        """All keys still stored, a view [B, H, used, D]."""
        return self._grown[0].tensor

    @property
    def values(self) -> Tensor:
        """All values still stored, a view [B, H, used, D]."""
        return self._grown[1].tensor

    @property
    def complete(self) -> bool:
        """Whether all tokens ever stored are still there."""
        return self._positions is None

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` slots shaped like keys and values [B, H, n, D]; stored tokens stay."""
        for growing in self._stored or self._start(keys, values):
            growing.reserve(capacity)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""
        count = keys.shape[2]
        stored_keys, stored_values = self._stored or self._start(keys, values)
        stored_keys.append(keys)
        stored_values.append(values)
        if self._positions is not None:
            self._positions.append(torch.arange(self.length, self.length + count, device=keys.device))
        self.used += count
        self.length += count
        self.newest = (keys, values) if count == 1 else None

    def retain(self, positions: Tensor) -> None:
        """Drop all tokens but those at `positions` [B, H, K], ascending, -1 pads, and free their memory.

        Raises InvalidInputError for a position that is not stored.
        """
        # A pad repeats the token before it: positions stay in order, so that `slots` finds the first, and the newest
        # tokens of all heads stay in the last slots.
        ordered = positions.cummax(-1).values
        slots = self.slots(ordered).clamp(min=0, max=self.used - 1)
        stored = slots if self._positions is None else self._positions.tensor.gather(-1, slots)
        if bool((stored != ordered)[ordered >= 0].any()):
            raise InvalidInputError("retain", "positions dropped before or never stored", "positions still stored")
        keys, values = self._at(slots)
        self.used = ordered.shape[-1]
        growing = partial(GrowingTensor, dim=2, least_spare=SPARE_AFTER_RETAIN, most_spare=SPARE_AFTER_RETAIN)
        self._stored, self._positions = (growing(keys), growing(values)), growing(ordered)
        self.reserve(keys, values, self.used + SPARE_AFTER_RETAIN)

    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, count, D] of the last tokens stored."""
        if count == 1 and self.newest is not None:
            return self.newest
        tail = slice(self.used - count, self.used)
        return self.key_buffer[:, :, tail], self.value_buffer[:, :, tail]

    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The store's buffers, and the slots of the tokens in them."""
        return Fetched(self.key_buffer, self.value_buffer, self.slots(indices, padded=padded))

    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some token."""
        return self._at(self.slots(positions, rows).clamp(min=0), rows)

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some token."""
        return rows_of(self.key_buffer, self._places(self.slots(positions, rows).clamp(min=0), rows))

    def keys_at(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """The buffer of keys [B, H, N, D], a view, and the slots [B, R, S] of the tokens at `positions` in it."""
        return self.key_buffer[rows], self.slots(positions, rows)

    def slots(self, positions: Tensor, rows: slice = slice(None), *, padded: bool = True) -> Tensor:
        """Slots of the stored tokens at `positions` [B, R, S] of these batch rows, R a multiple of H; -1 pads stay.

        `padded=False` promises that there are no pads and that all positions are stored, which saves time.
        """
        if self._positions is None:
            return positions
        stored = self._positions.tensor[rows].contiguous()
        if not padded and positions.shape[1] == stored.shape[1]:
            return torch.searchsorted(stored, positions)
        by_head = positions.unflatten(1, (stored.shape[1], -1)).flatten(2)  # [B, H, R/H * S]
        slots = torch.searchsorted(stored, by_head.contiguous()).clamp_(max=self.used - 1)
        return slots.masked_fill_(by_head < 0, -1).view_as(positions)

    def pads(self) -> Tensor | None:
        """Slots [B, H, used] that repeat another because their head holds fewer tokens; None if there are none."""
        if self._positions is None:
            return None
        stored = self._positions.tensor
        repeated = torch.zeros_like(stored, dtype=torch.bool)
        repeated[..., 1:] = stored[..., 1:] == stored[..., :-1]
        repeated |= stored < 0
        return repeated if bool(repeated.any()) else None

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory for keys and values on each tier, spare room included."""
        if self._stored is None:
            return {"device": 0}
        return {"device": self.token_bytes * self.key_buffer.shape[:3].numel()}

    @property
    def batch(self) -> int:
        """Number of sequences in the batch, once tokens are stored."""
        return self.key_buffer.shape[0]

    @property
    def key_bytes(self) -> int:
        """Bytes of one token's keys in all KV heads of one sequence."""
        _, heads, _, width = self.key_buffer.shape
        return heads * width * self.key_buffer.element_size()

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value in one KV head."""
        buffers = (self.key_buffer, self.value_buffer)
        return sum(buffer.shape[-1] * buffer.element_size() for buffer in buffers)

    def renewed(self) -> DeviceStore:
        """An empty store."""
        return DeviceStore()

    def clone(self) -> DeviceStore:
        """An independent copy."""
        copy = DeviceStore()
        copy.used, copy.length = self.used, self.length
        if self._stored is not None:
            copy._stored = self._stored[0].clone(), self._stored[1].clone()
        if self._positions is not None:
            copy._positions = self._positions.clone()
        return copy

    def _start(self, keys: Tensor, values: Tensor) -> tuple[GrowingTensor, GrowingTensor]:
        """Empty growing keys and values, shaped like these [B, H, n, D]."""
        growing = partial(GrowingTensor, dim=2, least_spare=SPARE_TOKENS)
        self._stored = growing(keys[:, :, :0]), growing(values[:, :, :0])
        return self._stored

    @property
    def _grown(self) -> tuple[GrowingTensor, GrowingTensor]:
        """The growing keys and values; there must be room for some."""
        assert self._stored is not None
        return self._stored

    def _at(self, slots: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] at these slots of these batch rows."""
        places = self._places(slots, rows)
        return rows_of(self.key_buffer, places), rows_of(self.value_buffer, places)

    def _places(self, slots: Tensor, rows: slice) -> Tensor:
        batch, heads, capacity, _ = self.key_buffer.shape
        return row_places(slots, batch, heads, capacity, rows)
