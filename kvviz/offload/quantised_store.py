"""QuantisedStore: one layer's keys and values in fewer bits, on the model's device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .codec import Codec
from .layer_store import ALL_ROWS, Fetched, LayerStore
from .packed_tokens import PackedTokens

PART_TOKENS = 1024  # tokens of a head that are decoded at once: limits what is in full precision


class QuantisedStore(LayerStore):
    """Keys and values of one layer, each in the bits of its codec; it decodes what is fetched, and nothing is kept.

    A prompt is attended to, and indexed, as it came. `compress` then encodes what the codecs say, and each later call
    those of the tokens generated since. Reading a token gives what is stored of it.
    """

    def __init__(self, keys: Codec, values: Codec) -> None:
        self._keys, self._values = PackedTokens(keys), PackedTokens(values)
        self._starts: Sequence[int] | None = None

    @property
    def exact(self) -> bool:
        """False: tokens do not come back as they were."""
        return False

    @property
    def keys(self) -> Tensor:
        """All keys as they are stored, [B, H, L, D], decoded."""
        return self._keys.between(0, self.length)

    @property
    def values(self) -> Tensor:
        """All values as they are stored, [B, H, L, D], decoded."""
        return self._values.between(0, self.length)

    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens shaped like keys and values [B, H, n, D]; stored tokens stay."""
        self._keys.reserve(keys, capacity)
        self._values.reserve(values, capacity)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D], exact until `compress`."""
        self._keys.append(keys)
        self._values.append(values)
        self.length += keys.shape[2]
        self.used = self.length
        self.newest = (keys, values) if keys.shape[2] == 1 else None

    def compress(self, starts: Sequence[int] | None = None) -> None:
        """Encode the tokens that are due; `starts` [B] counts each row's left padding."""
        self._starts = starts or self._starts
        self._keys.compress(self._starts)
        self._values.compress(self._starts)

    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, count, D] of the last tokens stored."""
        if count == 1 and self.newest is not None:
            return self.newest
        tail = self.length - count, self.length
        return self._keys.between(*tail), self._values.between(*tail)

    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The tokens at `indices` [B, R, S], -1 pads, decoded; valid until the next call."""
        if not self._keys.packed and not self._values.packed:
            return Fetched(self._keys.tail.buffer, self._values.tail.buffer, indices)
        slots = torch.arange(indices.shape[-1], device=indices.device).expand_as(indices)
        start = None if padded else _range_start(indices)
        if start is not None:
            bounds = start, start + indices.shape[-1]
            return Fetched(self._keys.between(*bounds), self._values.between(*bounds), slots)
        heads = self._keys.tail.buffer.shape[1]
        first = torch.arange(indices.shape[1], device=indices.device) % (indices.shape[1] // heads)
        slots = (slots + first[:, None] * indices.shape[-1]).masked_fill(indices < 0, -1)
        keys, values = (part.at(indices).unflatten(1, (heads, -1)).flatten(2, 3) for part in (self._keys, self._values))
        return Fetched(keys, values, slots)

    def parts(self, indices: Tensor) -> list[slice] | None:
        """Slices of PART_TOKENS slots; None if there are no more."""
        count = indices.shape[-1]
        if count <= PART_TOKENS:
            return None
        return [slice(start, min(start + PART_TOKENS, count)) for start in range(0, count, PART_TOKENS)]

    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some token."""
        return self._keys.at(positions, rows), self._values.at(positions, rows)

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some token."""
        return self._keys.at(positions, rows)

    def kept_bytes(self) -> dict[str, int]:
        """Bytes of all tensors of keys and values, spare room included."""
        return {"device": self._keys.nbytes + self._values.nbytes}

    def read_bytes(self, indices: Tensor) -> int:
        """Bytes of the keys and values at `indices` [B, R, S], -1 pads, as they are stored."""
        return self._keys.read_bytes(indices) + self._values.read_bytes(indices)

    @property
    def batch(self) -> int:
        """Number of sequences in the batch, once tokens are stored."""
        return self._keys.tail.buffer.shape[0]

    @property
    def key_bytes(self) -> int:
        """Bytes of one token's encoded keys in all KV heads of one sequence, with their share of their group."""
        return self._keys.tail.buffer.shape[1] * self._keys.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's encoded key and value in one KV head, with their share of their group."""
        return self._keys.token_bytes + self._values.token_bytes

    def renewed(self) -> QuantisedStore:
        """An empty store with the same codecs."""
        return QuantisedStore(self._keys.codec, self._values.codec)

    def clone(self) -> QuantisedStore:
        """An independent copy."""
        copy = self.renewed()
        copy._keys, copy._values = self._keys.clone(), self._values.clone()
        copy.length, copy.used, copy.newest, copy._starts = self.length, self.used, self.newest, self._starts
        return copy


def _range_start(indices: Tensor) -> int | None:
    """The first of the positions [B, R, S], ascending, if all rows are the same range of positions; otherwise None."""
    count = indices.shape[-1]
    first = indices[..., 0]
    start = int(first.flatten()[0]) if count else 0
    same = bool(((first == start) & (indices[..., -1] - first == count - 1)).all()) if count else False
    return start if same else None
