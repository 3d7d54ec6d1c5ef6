"""The union of lists in Triton: one bit per position, and running sums of the bits for the places."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor  # annotations of kernels must be names that Triton knows, unlike typing.Any

BLOCK_ENTRIES, BLOCK_WORDS, BITS = 1024, 512, 32


def _popcount(word: tensor) -> tensor:
    """The number of bits set in int32 words. The masks clear the sign bits of arithmetic shifts."""
    word = word - ((word >> 1) & 0x55555555)
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    word += word >> 8
    word += word >> 16
    return word & 0x3F


_bits_of = triton.jit(_popcount)


def _mark(entries: tensor, bitmap: tensor, n: tensor, words: tensor, length: tensor, BLOCK: tl.constexpr) -> None:
    """One program per block of a row's entries: sets the bits of their positions."""
    row = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(entries + row * n + slot, mask=slot < n, other=-1).to(tl.int32)
    bit = tl.full([BLOCK], 1, tl.int32) << (token & 31)
    tl.atomic_or(bitmap + row * words + (token >> 5), bit, mask=(token >= 0) & (token < length), sem="relaxed")


def _compact(
    bitmap: tensor, before: tensor, tokens: tensor, first: tensor, counts: tensor,
    n: tensor, words: tensor, width: tensor, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program per block of a row's words: writes the positions of its bits after those of all earlier words."""
    row, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    base = tl.zeros([BLOCK], tl.int32)
    for start in range(0, block * BLOCK, BLOCK):
        base += _bits_of(tl.load(bitmap + row * words + start + lane))
    word = block * BLOCK + lane
    bits = tl.load(bitmap + row * words + word, mask=word < words, other=0)
    number = _bits_of(bits)
    slot = tl.sum(base, 0) + tl.cumsum(number, 0) - number  # of the word's first bit
    tl.store(before + row * words + word, slot, mask=word < words)
    for bit in range(32):
        is_set = (bits >> bit) & 1
        here = (is_set == 1) & (slot < width)
        tl.store(tokens + row * width + slot, (word * 32 + bit).to(tl.int64), mask=here)
        tl.store(first + row * width + slot, tl.zeros([BLOCK], tl.int64) + n, mask=here)
        slot += is_set
    if block == tl.num_programs(0) - 1:
        total = tl.sum(base, 0) + tl.sum(number, 0)
        tl.store(counts + row, total.to(tl.int64))
        for start in range(0, width, BLOCK):
            place = start + lane
            pad = (place >= total) & (place < width)
            tl.store(tokens + row * width + place, tl.full([BLOCK], -1, tl.int64), mask=pad)
            tl.store(first + row * width + place, tl.zeros([BLOCK], tl.int64), mask=pad)


def _find_first(
    entries: tensor,
    bitmap: tensor,
    before: tensor,
    first: tensor,
    n: tensor,
    words: tensor,
    length: tensor,
    width: tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One program per block of a row's entries: keeps the smallest place of each token."""
    row = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(entries + row * n + slot, mask=slot < n, other=-1).to(tl.int32)
    real = (token >= 0) & (token < length)
    lower = (tl.full([BLOCK], 1, tl.int32) << (token & 31)) - 1  # the bits below the token's own
    bits = tl.load(bitmap + row * words + (token >> 5), mask=real, other=0)
    place = tl.load(before + row * words + (token >> 5), mask=real, other=0) + _bits_of(bits & lower)
    tl.atomic_min(first + row * width + place, slot.to(tl.int64), mask=real & (place < width), sem="relaxed")


# not decorators, so that type checkers without Triton see the functions
_mark_kernel = triton.jit(_mark)
_compact_kernel = triton.jit(_compact)
_find_first_kernel = triton.jit(_find_first)


def ivf_union(entries: Tensor, length: int, *, width: int | None, places: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct positions; see `kvviz_kernels.ivf_union`."""
    batch, n = entries.shape[:-1], entries.shape[-1]
    rows = entries.reshape(batch.numel(), n).contiguous()
    words = max(1, triton.cdiv(length, BITS))
    slots = max(1, min(n, length)) if width is None else width
    bitmap = torch.zeros(len(rows), words, dtype=torch.int32, device=rows.device)
    before = torch.empty_like(bitmap)
    tokens = torch.empty(len(rows), slots, dtype=torch.int64, device=rows.device)
    first = torch.empty_like(tokens)
    counts = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    if len(rows):
        of_entries = (triton.cdiv(n, BLOCK_ENTRIES), len(rows))
        if n:
            _mark_kernel[of_entries](rows, bitmap, n, words, length, BLOCK=BLOCK_ENTRIES)
        _compact_kernel[(triton.cdiv(words, BLOCK_WORDS), len(rows))](
            bitmap, before, tokens, first, counts, n, words, slots, BLOCK=BLOCK_WORDS
        )
        if n and places:
            _find_first_kernel[of_entries](rows, bitmap, before, first, n, words, length, slots, BLOCK=BLOCK_ENTRIES)
    if width is None:
        widest = max(int(counts.amax()), 1) if len(rows) else 1
        tokens, first = tokens[:, :widest], first[:, :widest]
    first = first if places else first[:, :0]
    return tokens.reshape(*batch, tokens.shape[-1]), first.reshape(*batch, first.shape[-1]), counts.view(batch)
