"""PackedTokens: the keys or the values of one layer, the older ones in fewer bits and the newest as they came."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .codec import Codec, Encoded
from .growing import LEAST_SPARE, SPARE_TOKENS, GrowingTensor
from .layer_store import ALL_ROWS, row_places, rows_of


class PackedTokens:
    """Growing keys or values: the first `packed` tokens are encoded by the codec, the others are exact.

    `append` adds exact tokens, and `compress` encodes those that are due. `length` counts both.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.packed = self.length = 0
        self._tokens: tuple[GrowingTensor, ...] = ()
        self._groups: tuple[GrowingTensor, ...] = ()
        self._fitted: tuple[Tensor, ...] = ()
        self._tail: GrowingTensor | None = None  # the exact tokens, after `_skipped` slots of tokens encoded since
        self._skipped = 0

    @property
    def tail(self) -> GrowingTensor:
        """The exact tokens [B, H, n, D]; if some are encoded, after slots that are not in use any more."""
        assert self._tail is not None
        return self._tail

    def reserve(self, like: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens in all, shaped like these [B, H, n, D], in full precision."""
        self._started(like).reserve(self._skipped + capacity - self.packed)

    def append(self, tokens: Tensor) -> None:
        """Add the next tokens [B, H, n, D], exact."""
        self._started(tokens).append(tokens)
        self.length += tokens.shape[2]

    def compress(self, starts: Sequence[int] | None = None) -> None:
        """Encode the tokens that are due. `starts` [B] counts each row's left padding, the first time."""
        count = self.codec.due(self.length - self.packed)
        if not count:
            return
        due = self.tail.tensor.narrow(2, self._skipped, count)
        if not self.packed:
            due = due if starts is None else _without_padding(due, starts)
            self._fitted = self._fit(due, starts)
        encoded = self.codec.encode(due, self._fitted)
        if not self.packed:
            group = self.codec.group
            self._tokens = tuple(GrowingTensor(part.contiguous(), 2) for part in encoded.tokens)
            self._groups = tuple(
                GrowingTensor(part.contiguous(), 2, least_spare=max(LEAST_SPARE // group, 1)) for part in encoded.groups
            )
        else:
            for growing, part in zip(self._tokens + self._groups, encoded.tokens + encoded.groups, strict=True):
                growing.append(part)
        self.packed += count
        self._skipped += count
        if self._skipped >= LEAST_SPARE:  # free the room of what is encoded
            left = self.tail.tensor[:, :, self._skipped :].clone(memory_format=torch.contiguous_format)
            self._tail, self._skipped = GrowingTensor(left, 2), 0
            self._tail.reserve(self._tail.used + LEAST_SPARE)

    def between(self, start: int, stop: int) -> Tensor:
        """The tokens [B, H, n, D] from `start` to `stop`."""
        parts, group = [], self.codec.group
        end = min(stop, self.packed)
        if start < end:
            first = start // group
            of_groups = [
                growing.tensor[:, :, first : -(-end // group)].repeat_interleave(group, dim=2)[
                    :, :, start - first * group : end - first * group
                ]
                for growing in self._groups
            ]
            of_tokens = [growing.tensor[:, :, start:end] for growing in self._tokens]
            fitted = tuple(part[:, :, None] for part in self._fitted)
            decoded = self.codec.decode(Encoded(tuple(of_tokens), tuple(of_groups)), fitted)
            parts.append(decoded.to(self.tail.buffer.dtype))
        if stop > self.packed or not parts:
            exact = slice(max(start - self.packed, 0) + self._skipped, max(stop - self.packed, 0) + self._skipped)
            parts.append(self.tail.buffer[:, :, exact])
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def at(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """The tokens [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad gives some token."""
        exact = None
        if self.length > self.packed:
            slots = positions.clamp(min=self.packed) - self.packed + self._skipped
            exact = _gathered(self.tail, slots, rows)
        if not self.packed:
            assert exact is not None
            return exact
        places = positions.clamp(min=0, max=self.packed - 1)
        of_tokens = tuple(_gathered(growing, places, rows) for growing in self._tokens)
        of_groups = tuple(_gathered(growing, places // self.codec.group, rows) for growing in self._groups)
        per_head = positions.shape[1] // self.tail.buffer.shape[1]
        fitted = tuple(part[rows].repeat_interleave(per_head, dim=1)[:, :, None] for part in self._fitted)
        decoded = self.codec.decode(Encoded(of_tokens, of_groups), fitted).to(self.tail.buffer.dtype)
        return decoded if exact is None else torch.where((positions >= self.packed)[..., None], exact, decoded)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, spare room included."""
        growing = [part.buffer for part in (*self._tokens, *self._groups, *([self._tail] if self._tail else []))]
        return sum(tensor.nbytes for tensor in (*growing, *self._fitted))

    @property
    def exact_bytes(self) -> int:
        """Bytes of one token of one head in full precision."""
        return self.tail.buffer.shape[-1] * self.tail.buffer.element_size()

    @property
    def token_bytes(self) -> int:
        """Bytes of one encoded token of one head with its share of its group, rounded up; if none is, of an exact one.

        What was fitted to the first tokens does not count: a step reads it once.
        """
        return -(-self._encoded_bytes(self.codec.group) // self.codec.group) if self.packed else self.exact_bytes

    def read_bytes(self, positions: Tensor) -> int:
        """Bytes of the tokens at `positions` [B, R, S], -1 pads, encoded ones with their share of their group."""
        exact = int((positions >= self.packed).sum())
        encoded = int((positions >= 0).sum()) - exact
        return exact * self.exact_bytes + self._encoded_bytes(encoded)

    def clone(self) -> PackedTokens:
        """An independent copy."""
        copy = PackedTokens(self.codec)
        copy.packed, copy.length, copy._skipped = self.packed, self.length, self._skipped
        copy._tokens = tuple(growing.clone() for growing in self._tokens)
        copy._groups = tuple(growing.clone() for growing in self._groups)
        copy._fitted = tuple(part.clone() for part in self._fitted)
        copy._tail = None if self._tail is None else self._tail.clone()
        return copy

    def _started(self, like: Tensor) -> GrowingTensor:
        if self._tail is None:
            self._tail = GrowingTensor(like[:, :, :0].contiguous(), 2, least_spare=SPARE_TOKENS)
        return self._tail

    def _fit(self, due: Tensor, starts: Sequence[int] | None) -> tuple[Tensor, ...]:
        """What the codec learns of the first tokens, without each row's padding."""
        if starts is None:
            return self.codec.fit(due)
        rows = [self.codec.fit(due[row, None, :, min(start, due.shape[2] - 1) :]) for row, start in enumerate(starts)]
        return tuple(torch.cat(parts) for parts in zip(*rows, strict=True))

    def _encoded_bytes(self, count: int) -> int:
        """Bytes of so many encoded tokens of one head, with their share of their groups, rounded up."""
        of_token, of_group = (
            sum(growing.buffer.shape[-1] * growing.buffer.element_size() for growing in kind)
            for kind in (self._tokens, self._groups)
        )
        return count * of_token + -(-count * of_group // self.codec.group)


def _gathered(growing: GrowingTensor, slots: Tensor, rows: slice) -> Tensor:
    """The rows [B, R, S, W] of a growing tensor [B, H, n, W] at `slots` [B, R, S]; a slot beyond the last gives it."""
    batch, heads, capacity, _ = growing.buffer.shape
    return rows_of(growing.buffer, row_places(slots.clamp(max=growing.used - 1), batch, heads, capacity, rows))


def _without_padding(tokens: Tensor, starts: Sequence[int]) -> Tensor:
    """The tokens [B, H, n, D] with each row's first real token in place of its padding, which then widens no range."""
    filled = tokens.clone()
    for row, start in enumerate(starts):
        first = min(start, tokens.shape[2] - 1)
        filled[row, :, :first] = tokens[row, :, first : first + 1]
    return filled
