"""Codec: how the keys or the values of a layer are stored in fewer bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from .packing import CODES_PER_WORD, pack, unpack


class Encoded(NamedTuple):
    """Tokens in fewer bits: `tokens` [B, H, n, ·], one row per token, and `groups` [B, H, n / group, ·]."""

    tokens: tuple[Tensor, ...]
    groups: tuple[Tensor, ...] = ()


class Codec(ABC):
    """A way to store keys, or values, in fewer bits. `group`: how many successive tokens are encoded together.

    What a codec computes from its settings alone, such as a rotation, is the same for all caches, and not a part of
    what is stored.
    """

    group: int = 1

    @abstractmethod
    def due(self, exact: int) -> int:
        """How many of the oldest of `exact` tokens in full precision are to be encoded now; a multiple of `group`."""

    def fit(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Tensors [B, H, ·] that the first tokens [B, H, n, D] to be encoded determine for all others; by default none.

        They are stored with the tokens.
        """
        return ()

    @abstractmethod
    def encode(self, tokens: Tensor, fitted: tuple[Tensor, ...]) -> Encoded:
        """Tokens [B, H, n, D] in fewer bits; n is a multiple of `group`, and `fitted` is what `fit` gave."""

    @abstractmethod
    def decode(self, encoded: Encoded, fitted: tuple[Tensor, ...]) -> Tensor:
        """Float32 tokens [B, R, n, D] from their rows, with their group's row for each; `fitted` are [B, R, 1, ·]."""


def pack_channels(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 [..., D] below 2^`bits`, packed into uint8 [..., ⌈D/8⌉ · bits], the lowest bit first."""
    return pack(codes[..., None], bits).flatten(-2)


def unpack_channels(packed: Tensor, bits: int, count: int) -> Tensor:
    """The `count` codes uint8 [..., D] of packed codes; bits 1 to 8."""
    rows = packed.unflatten(-1, (-1, bits))
    return unpack(rows, bits).flatten(-2)[..., :count]


def packed_width(count: int, bits: int) -> int:
    """Bytes of `count` packed codes."""
    return -(-count // CODES_PER_WORD) * bits
