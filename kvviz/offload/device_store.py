"""Keys and values of one layer, on the model's own device."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .growing import SPARE_TOKENS, GrowingTensor
from .layer_store import ALL_ROWS, Fetched, LayerStore, row_places

SPARE_AFTER_RETAIN = 64  # a store that drops tokens is small: much spare room would undo what was freed


class DeviceStore(LayerStore):
    """Growing keys and values of one layer, with spare room so that a decode step copies one token and not all.

    `DynamicCache` concatenates instead and copies every key and value at every step. `retain` drops tokens and frees
    their memory; what is left lies in other slots than before, and `slots` says where. `length` counts every token ever
    stored, `used` the slots in use.
    """

    def __init__(self) -> None:
        self._stored: tuple[GrowingTensor, GrowingTensor] | None = None  # keys and values [B, H, used, D]
        self._positions: GrowingTensor | None = None  # [B, H, used], never descending; None while slot i holds token i

    @property
    def key_buffer(self) -> Tensor:
        """Keys with the spare room behind them, [B, H, capacity, D]; valid up to `used`."""
        return self._grown[0].buffer

    @property
    def value_buffer(self) -> Tensor:
        """Values with the spare room behind them, [B, H, capacity, D]; valid up to `used`."""
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
        """Whether every token ever stored is still there."""
        return self._positions is None

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` slots shaped like keys and values [B, H, n, D]; what is stored stays."""
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
        """Drop every token but those at `positions` [B, H, K], ascending, -1 pads; the memory of the rest is freed.

        Raises InvalidInputError for a position that is not stored.
        """
        last = positions.amax(-1, keepdim=True)
        # A pad repeats the head's last token behind it: positions stay in order, so that `slots` finds the first.
        ordered = torch.where(positions < 0, last, positions).sort(-1).values
        found = self.slots(ordered).clamp(min=0, max=self.used - 1)
        there = found if self._positions is None else self._positions.tensor.gather(-1, found)
        if bool((there != ordered)[ordered >= 0].any()):
            raise InvalidInputError("retain", "positions dropped before or never stored", "positions still stored")
        keys, values = self._at(found)
        self.used = ordered.shape[-1]
        few = partial(GrowingTensor, dim=2, least_spare=SPARE_AFTER_RETAIN, most_spare=SPARE_AFTER_RETAIN)
        self._stored, self._positions = (few(keys), few(values)), few(ordered)
        self.reserve(keys, values, self.used + SPARE_AFTER_RETAIN)

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
        held = self._positions.tensor[rows].contiguous()
        if not padded and positions.shape[1] == held.shape[1]:
            return torch.searchsorted(held, positions)
        by_head = positions.unflatten(1, (held.shape[1], -1)).flatten(2)  # [B, H, R/H * S]
        found = torch.searchsorted(held, by_head.contiguous()).clamp_(max=self.used - 1)
        return found.masked_fill_(by_head < 0, -1).view_as(positions)

    def pads(self) -> Tensor | None:
        """Slots [B, H, used] that repeat another because their head holds fewer tokens; None where there are none."""
        if self._positions is None:
            return None
        held = self._positions.tensor
        repeated = torch.zeros_like(held, dtype=torch.bool)
        repeated[..., 1:] = held[..., 1:] == held[..., :-1]
        repeated |= held < 0
        return repeated if bool(repeated.any()) else None

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory that holds keys and values on each tier, spare room included."""
        if self._stored is None:
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
        copy.used, copy.length = self.used, self.length
        if self._stored is not None:
            copy._stored = self._stored[0].clone(), self._stored[1].clone()
        if self._positions is not None:
            copy._positions = self._positions.clone()
        return copy

    def _start(self, keys: Tensor, values: Tensor) -> tuple[GrowingTensor, GrowingTensor]:
        """Nothing yet, shaped like keys and values [B, H, n, D]."""
        many = partial(GrowingTensor, dim=2, least_spare=SPARE_TOKENS)
        self._stored = many(keys[:, :, :0]), many(values[:, :, :0])
        return self._stored

    @property
    def _grown(self) -> tuple[GrowingTensor, GrowingTensor]:
        """Keys and values, of which there are some once room was made."""
        assert self._stored is not None
        return self._stored

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
