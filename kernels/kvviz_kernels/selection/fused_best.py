"""The best scores of a row in Triton: a radix search for the threshold, exact and deterministic."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor

from ..tuning import Config, best_config, grid

DEFAULT: Config = {"block": 8192, "num_warps": 16}
CANDIDATES = grid(block=(4096, 8192, 16384), num_warps=(8, 16, 32))
DIGITS: tl.constexpr = tl.constexpr(2048)  # each pass decides 11 bits of the scores: three passes for 32


def _ordered(scores: tensor) -> tensor:
    """Float32 as int32 in the same order; both zeros are the same number."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


ordered_function = triton.jit(_ordered)  # not a decorator, so that type checkers without Triton see the function


def _best(
    scores: tensor, output: tensor, length: tensor, count: tensor, BLOCK: tl.constexpr, PASSES: tl.constexpr
) -> None:
    """One program per row: the threshold by radix search from the highest digit, then one pass that writes positions.

    The passes read the row from the L2 cache. Histograms count integers, so the order of additions does not matter.
    """
    row = tl.program_id(0).to(tl.int64)
    base = scores + row * length
    digits = tl.arange(0, DIGITS)
    prefix = tl.zeros([], tl.int64)  # the threshold's digits so far, as one number
    wanted = count + tl.zeros([], tl.int32)  # places left for scores that share the prefix
    for step in tl.static_range(PASSES):
        histogram = tl.zeros([DIGITS], tl.int32)
        for start in range(0, length, BLOCK):
            place = start + tl.arange(0, BLOCK)
            score = tl.load(base + place, mask=place < length, other=0.0).to(tl.float32)
            key = ordered_function(score).to(tl.int64) + 2147483648  # 32 bits, not negative, and a 33rd for 3 · 11
            shift = 11 * (PASSES - 1 - step)
            sharing = (place < length) & ((key >> (shift + 11)) == prefix)
            # Other scores count as digit 0 and are subtracted: histograms with a mask are newer than Triton 3.2.
            histogram += tl.histogram(tl.where(sharing, (key >> shift) & 2047, 0).to(tl.int32), DIGITS)
            histogram -= tl.where(digits == 0, BLOCK - tl.sum(sharing.to(tl.int32), 0), 0)
        from_here = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram  # with this digit or a larger one
        digit = tl.max(tl.where(from_here >= wanted, digits, 0), 0)
        wanted -= tl.sum(tl.where(digits > digit, histogram, 0), 0)
        prefix = (prefix << 11) | digit.to(tl.int64)
    written = tl.zeros([], tl.int32)
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        score = tl.load(base + place, mask=place < length, other=0.0).to(tl.float32)
        key = ordered_function(score).to(tl.int64) + 2147483648
        equal = (place < length) & (key == prefix)
        number = tl.cumsum(equal.to(tl.int32), 0)
        taken = ((place < length) & (key > prefix)) | (equal & (number <= wanted))
        slot = written + tl.cumsum(taken.to(tl.int32), 0) - 1
        tl.store(output + row * count + slot, place.to(tl.int64), mask=taken)
        written += tl.sum(taken.to(tl.int32), 0)
        wanted -= tl.sum(equal.to(tl.int32), 0)


_best_kernel = triton.jit(_best)


def take_best(scores: Tensor, count: int, *, config: Config | None = None) -> Tensor:
    """Positions of the largest scores; see `kvviz_kernels.take_best`."""
    batch, rows, length = scores.shape
    count = max(min(count, length), 0)
    output = torch.empty((batch, rows, count), dtype=torch.int64, device=scores.device)
    if output.numel():
        config = config or best_config("take_best", scores.device, DEFAULT)
        _best_kernel[(batch * rows,)](
            scores.contiguous(), output, length, count,
            BLOCK=min(config["block"], triton.next_power_of_2(max(length, 16))), PASSES=3,
            num_warps=config["num_warps"],
        )  # fmt: skip
    return output
