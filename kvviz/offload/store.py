"""Keys and values of one layer, on the model's own device."""

from __future__ import annotations

import torch
from torch import Tensor

SPARE_TOKENS = 512


class DeviceStore:
    """Growing keys and values of one layer, with spare room so that a decode step copies one token and not all.

    `DynamicCache` concatenates instead and copies every key and value at every step.
    """

    def __init__(self) -> None:
        self.length = 0
        self.moved_bytes = 0  # nothing ever leaves the device
        self.newest: tuple[Tensor, Tensor] | None = None  # key and value [B, H, 1, D], where one token came last
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def key_buffer(self) -> Tensor:
        """Keys with the spare room behind them, contiguous [B, H, capacity, D]; valid up to `length`."""
        assert self._keys is not None
        return self._keys

    @property
    def value_buffer(self) -> Tensor:
        """Values with the spare room behind them, contiguous [B, H, capacity, D]; valid up to `length`."""
        assert self._values is not None
        return self._values

    @property
    def keys(self) -> Tensor:
        """All keys, a view [B, H, L, D]."""
        return self.key_buffer[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """All values, a view [B, H, L, D]."""
        return self.value_buffer[:, :, : self.length]

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens shaped like keys and values [B, H, n, D]; what is stored stays."""
        if self._keys is not None and self._keys.shape[2] >= capacity:
            return
        self._keys = self._grown(self._keys, keys, capacity)
        self._values = self._grown(self._values, values, capacity)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""
        end = self.length + keys.shape[2]
        if self._keys is None or end > self._keys.shape[2]:
            self.reserve(keys, values, end + max(SPARE_TOKENS, end // 8))
        self.key_buffer[:, :, self.length : end] = keys
        self.value_buffer[:, :, self.length : end] = values
        self.length = end
        self.newest = (keys, values) if keys.shape[2] == 1 else None

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of stored keys and values on each tier, spare room aside."""
        if self._keys is None:
            return {"device": 0}
        return {
            "device": self.keys.numel() * self.keys.element_size() + self.values.numel() * self.values.element_size()
        }

    def clone(self) -> DeviceStore:
        """An independent copy."""
        copy = DeviceStore()
        if self._keys is not None:
            copy.append(self.keys, self.values)
        return copy

    def _grown(self, old: Tensor | None, like: Tensor, capacity: int) -> Tensor:
        batch, heads, _, dim = like.shape
        new = torch.empty((batch, heads, capacity, dim), dtype=like.dtype, device=like.device)
        if old is not None:
            new[:, :, : self.length] = old[:, :, : self.length]
        return new
