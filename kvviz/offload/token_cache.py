"""TokenCache: the keys and values that a method may look up."""

from __future__ import annotations

import torch
from torch import Tensor

from .device_store import DeviceStore
from .layer_store import LayerStore


class TokenCache:
    """The keys and values that a method may look up: those of its layer or, without a layer, those appended here.

    In a layer, this is a view of some batch rows of the layer's store, from their first real token on, and `append`
    does nothing, because the layer stores its tokens itself. Without a layer, as for a Trace, it stores the tokens.
    """

    def __init__(self, store: LayerStore | None = None, rows: slice = slice(None), start: int = 0) -> None:
        self._stores_tokens = store is None
        self._store = store or DeviceStore()
        self._rows, self._start = rows, start

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values [B, H, n, D], if there is no layer that stores them."""
        if self._stores_tokens:
            self._store.append(keys, values)

    @property
    def keys(self) -> Tensor:
        """All keys, a view [B, H, L, D]; only while no token was dropped."""
        assert self._store.complete
        return self._store.keys[self._rows, :, self._start :]

    @property
    def values(self) -> Tensor:
        """All values, a view [B, H, L, D]; only while no token was dropped."""
        assert self._store.complete
        return self._store.values[self._rows, :, self._start :]

    @property
    def key_bytes(self) -> int:
        """Bytes of all keys, on any tier; none is read."""
        sequences = len(range(self._store.batch)[self._rows])
        return sequences * (self._store.length - self._start) * self._store.key_bytes

    @property
    def offloading_store(self) -> LayerStore | None:
        """The layer's store if it keeps tokens on a lower tier, otherwise None."""
        return self._store if self._store.offloads else None

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] at `positions` [B, R, S], R a multiple of H; a -1 pad reads a token or 0."""
        return self._store.read(self._absolute(positions), self._rows)

    def take_keys(self, positions: Tensor) -> Tensor:
        """Keys [B, R, S, D] at `positions` [B, R, S], R a multiple of H; a -1 pad reads a token or 0."""
        return self._store.read_keys(self._absolute(positions), self._rows)

    def keys_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """A buffer of keys [B, H or R, N, D], and the places in it of the tokens at `positions` [B, R, S], -1 for pads.

        Nothing is copied if the device holds the keys.
        """
        return self._store.keys_at(self._absolute(positions), self._rows)

    def keys_on_host(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """As `keys_at`, in host memory; only the positions are moved there. None unless a lower tier has all keys."""
        on_host = self._store.on_host(self._absolute(positions), self._rows)
        return None if on_host is None else (on_host.keys, on_host.slots)

    def to_host(self, tensor: Tensor) -> Tensor:
        """The tensor in host memory; its bytes count as moved if the layer's store offloads tokens."""
        return self._store.to_host(tensor)

    def to_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A tensor of the host on this device; its bytes count as moved if the layer's store offloads tokens."""
        return self._store.to_device(tensor, device)

    def _absolute(self, positions: Tensor) -> Tensor:
        return torch.where(positions < 0, positions, positions + self._start) if self._start else positions
