"""Keys and values of one layer, on the model's own device."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .growing import SPARE_TOKENS
from .layer_store import ALL_ROWS, Fetched, LayerStore, row_places

SPARE_AFTER_RETAIN = 64  # a store that drops tokens is small: much spare room would undo what was freed


class DeviceStore(LayerStore):
    """Growing keys and values of one layer, with spare room so that a decode step copies one token and not all.

    `DynamicCache` concatenates instead and copies every key and value at every step. `retain` drops tokens and frees
    their memory; what is left lies in other slots than before, and `slots` says where. `length` counts every token ever
    stored, `used` the slots in use.
    """

    def __init__(self) -> None:
        self._keys: Tensor | None = None  # [B, H, capacity, D]
        self._values: Tensor | None = None
        self._positions: Tensor | None = None  # [B, H, capacity], never descending; None while slot i holds token i

    @property
    def key_buffer(self) -> Tensor:
        """Keys with the spare room behind them, [B, H, capacity, D]; valid up to `used`."""
        assert self._keys is not None
        return self._keys

    @property
    def value_buffer(self) -> Tensor:
        """Values with the spare room behind them, [B, H, capacity, D]; valid up to `used`."""
        assert self._values is not None
        return self._values

    @property
    def keys(self) -> Tensor:
        """All keys still stored, a view [B, H, used, D]."""
        return self.key_buffer[:, :, : self.used]

    @property
    def values(self) -> Tensor:
        """All values still stored, a view [B, H, used, D]."""
        return self.value_buffer[:, :, : self.used]

    @property
    def complete(self) -> bool:
        """Whether every token ever stored is still there."""
        return self._positions is None

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` slots shaped like keys and values [B, H, n, D]; what is stored stays."""
        if self._keys is not None and self._keys.shape[2] >= capacity:
            return
        held = None if self._keys is None else (self.keys, self.values)
        self._allocate(keys, values, capacity)
        if held is not None:
            self.keys[:], self.values[:] = held
        if self._positions is not None:
            room = self._positions.new_empty((*self._positions.shape[:2], capacity))
            room[..., : self.used] = self._positions[..., : self.used]
            self._positions = room

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""
        count = keys.shape[2]
        end = self.used + count
        if self._keys is None or end > self._keys.shape[2]:
            spare = max(SPARE_TOKENS, end // 8) if self.complete else SPARE_AFTER_RETAIN
            self.reserve(keys, values, end + spare)
        self.key_buffer[:, :, self.used : end] = keys
        self.value_buffer[:, :, self.used : end] = values
        if self._positions is not None:
            self._positions[..., self.used : end] = torch.arange(
                self.length, self.length + count, device=self._positions.device
            )
        self.used = end
        self.length += count
        self.newest = (keys, values) if count == 1 else None

    def retain(self, positions: Tensor) -> None:
        """Drop every token but those at `positions` [B, H, K], ascending, -1 pads; the memory of the rest is freed.

        Raises InvalidInputError for a position that is not stored.
        """
        last = positions.amax(-1, keepdim=True)
        # A pad repeats the head's last token behind it: positions stay in order, so that `slots` finds the first.
        ordered = torch.where(positions < 0, last, positions).sort(-1).values
        found = self.slots(ordered).clamp(min=0, max=self.used - 1)
        there = found if self._positions is None else self._positions.gather(-1, found)
        if bool((there != ordered)[ordered >= 0].any()):
            raise InvalidInputError("retain", "positions dropped before or never stored", "positions still stored")
        room = ordered.shape[-1] + SPARE_AFTER_RETAIN
        keys, values = self._at(found)
        self.used = ordered.shape[-1]
        self._allocate(keys, values, room)
        self.keys[:], self.values[:] = keys, values
        self._positions = ordered.new_empty((*ordered.shape[:2], room))
        self._positions[..., : self.used] = ordered

    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, count, D] of the last tokens stored."""
        if count == 1 and self.newest is not None:
            return self.newest
        behind = slice(self.used - count, self.used)
        return self.key_buffer[:, :, behind], self.value_buffer[:, :, behind]

    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The store's own buffers, and where the tokens lie in them."""
        return Fetched(self.key_buffer, self.value_buffer, self.slots(indices, padded=padded))

    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads another token."""
        return self._at(self.slots(positions, rows).clamp(min=0), rows)

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some other token."""
        return _rows_of(self.key_buffer, self._places(self.slots(positions, rows).clamp(min=0), rows))

    def slots(self, positions: Tensor, rows: slice = slice(None), *, padded: bool = True) -> Tensor:
        """Where `positions` [B, R, S] of stored tokens lie, R a multiple of H, in these batch rows; -1 pads stay.

        `padded=False` promises that there are no pads and that every position is stored, which saves time.
        """
        if self._positions is None:
            return positions
        held = self._positions[rows, :, : self.used].contiguous()
        if not padded and positions.shape[1] == held.shape[1]:
            return torch.searchsorted(held, positions)
        by_head = positions.unflatten(1, (held.shape[1], -1)).flatten(2)  # [B, H, R/H * S]
        found = torch.searchsorted(held, by_head.contiguous()).clamp_(max=self.used - 1)
        return found.masked_fill_(by_head < 0, -1).view_as(positions)

    def pads(self) -> Tensor | None:
        """Slots [B, H, used] that repeat another because their head holds fewer tokens; None where there are none."""
        if self._positions is None:
            return None
        held = self._positions[..., : self.used]
        repeated = torch.zeros_like(held, dtype=torch.bool)
        repeated[..., 1:] = held[..., 1:] == held[..., :-1]
        repeated |= held < 0
        return repeated if bool(repeated.any()) else None

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory that holds keys and values on each tier, spare room included."""
        if self._keys is None:
            return {"device": 0}
        return {"device": self.token_bytes * self.key_buffer.shape[:3].numel()}

    @property
    def batch(self) -> int:
        """Sequences of the batch, once tokens were stored."""
        return self.key_buffer.shape[0]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's key and value, of one KV head."""
        buffers = (self.key_buffer, self.value_buffer)
        return sum(buffer.shape[-1] * buffer.element_size() for buffer in buffers)

    def renewed(self) -> DeviceStore:
        """An empty store."""
        return DeviceStore()

    def clone(self) -> DeviceStore:
        """An independent copy."""
        copy = DeviceStore()
        if self._keys is not None:
            copy.append(self.keys, self.values)
            copy.length = self.length
            if self._positions is not None:
                copy._positions = self._positions.new_empty((*self._positions.shape[:2], copy.key_buffer.shape[2]))
                copy._positions[..., : self.used] = self._positions[..., : self.used]
        return copy

    def _allocate(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """New room for `capacity` tokens shaped like keys and values [B, H, n, D]; what was stored is let go."""
        shape = (*keys.shape[:2], capacity)
        self._keys = keys.new_empty((*shape, keys.shape[-1]))
        self._values = values.new_empty((*shape, values.shape[-1]))

    def _at(self, slots: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] in these slots of these batch rows."""
        places = self._places(slots, rows)
        return _rows_of(self.key_buffer, places), _rows_of(self.value_buffer, places)

    def _places(self, slots: Tensor, rows: slice) -> Tensor:
        batch, heads, capacity, _ = self.key_buffer.shape
        return row_places(slots, batch, heads, capacity, rows)


def _rows_of(buffer: Tensor, places: Tensor) -> Tensor:
    """Rows of a contiguous buffer [B, H, N, D] at `places` [...] in it seen as a list: [..., D].

    index_select of whole rows: 10 µs where a gather along every channel took 870 µs (3 x 640 rows of 64, EPYC).
    """
    return buffer.view(-1, buffer.shape[-1]).index_select(0, places.flatten()).view(*places.shape, buffer.shape[-1])
