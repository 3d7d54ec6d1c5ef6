"""Codes of 1 to 16 bits, packed into bytes for host memory and transfers."""

from __future__ import annotations

import torch
from torch import Tensor

CODES_PER_WORD = 8  # so that a word of packed codes is a whole number of bytes: as many as a code has bits

__all__ = ["CODES_PER_WORD", "pack", "unpack"]


def pack(codes: Tensor, bits: int) -> Tensor:
    """Packed codes, uint8 [..., ⌈L/8⌉, m·bits]: a row holds the m codes of 8 tokens; missing tokens have the code 0.

    `codes` [..., L, m], uint8 or, above 8 bits, uint16, each below 2^`bits`; `bits` is 1 to 16. The 8·m codes of a row
    follow each other as in `codes`, the lowest bit first; above 8 bits, all lower bytes come before all upper bits.
    """
    tokens, parts = codes.shape[-2:]
    rows = -(-tokens // CODES_PER_WORD)
    padded = codes.new_zeros((*codes.shape[:-2], rows * CODES_PER_WORD, parts))
    padded[..., :tokens, :] = codes
    by_row = padded.view(*codes.shape[:-2], rows, CODES_PER_WORD * parts)
    if bits <= 8:
        return _pack_bytes(by_row, bits)
    halves = by_row.view(torch.uint8).unflatten(-1, (-1, 2))  # lower and upper byte
    upper = halves[..., 1].clone(memory_format=torch.contiguous_format)
    return torch.cat([halves[..., 0], _pack_bytes(upper, bits - 8)], dim=-1)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The codes [..., 8·R, m] of packed codes uint8 [..., R, m·bits], uint8 or, above 8 bits, uint16."""
    rows = packed.shape[-2]
    parts = packed.shape[-1] // bits
    shape = (*packed.shape[:-2], rows * CODES_PER_WORD, parts)
    if bits <= 8:
        return _unpack_bytes(packed, bits).view(shape)
    lower, upper = packed.split([CODES_PER_WORD * parts, parts * (bits - 8)], dim=-1)
    return torch.stack([lower, _unpack_bytes(upper, bits - 8)], dim=-1).view(torch.uint16).view(shape)


def _pack_bytes(codes: Tensor, bits: int) -> Tensor:
    """Codes of at most 8 bits, contiguous uint8 [..., R, 8·m], packed into uint8 [..., R, bits·m]."""
    if bits == 8:
        return codes
    words = codes.view(torch.int64)  # [..., R, m], one code per byte
    for count in (1, 2, 4):  # moves every second run of `count` codes next to the one before
        low = _low_bits(count, bits)
        words = (words & low) | ((words >> 8 * count) & low) << count * bits
    packed: Tensor = words.view(torch.uint8).unflatten(-1, (-1, 8))[..., :bits].flatten(-2)
    return packed


def _unpack_bytes(packed: Tensor, bits: int) -> Tensor:
    """The inverse of `_pack_bytes`."""
    if bits == 8:
        return packed
    runs: Tensor = packed.unflatten(-1, (-1, bits))
    spread = runs.new_zeros((*runs.shape[:-1], 8))
    spread[..., :bits] = runs
    words = spread.flatten(-2).view(torch.int64)  # [..., R, m], 8 codes in the lowest bits
    for count in (4, 2, 1):
        low = _low_bits(count, bits)
        upper = (words >> count * bits).bitwise_and_(low).bitwise_left_shift_(8 * count)
        words.bitwise_and_(low).bitwise_or_(upper)  # in place: half the time for long prompts
    return words.view(torch.uint8)


def _low_bits(count: int, bits: int) -> int:
    """A mask for runs of `count` codes of `bits` bits, one run in every 2·`count` bytes of a word of 8 bytes."""
    return sum(((1 << count * bits) - 1) << start for start in range(0, 64, 16 * count))
