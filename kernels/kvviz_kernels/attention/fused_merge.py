"""Merging of partial attention in Triton: one launch that reads the parts once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_STACKED = 64  # maximum parts of `merge_stacked`: a program holds all parts of a row at once
MAX_LISTED = 4  # maximum parts per launch of `merge_attention`; kvviz itself has at most 3
_WARPS = 2


def _merge_stacked(
    parts: tl.tensor, part_lses: tl.tensor, output: tl.tensor, lse: tl.tensor, count: tl.tensor, rows: tl.tensor,
    D: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (sequence, query head): all parts, which are stored one after another."""
    row = tl.program_id(0).to(tl.int64)
    part, dims = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_D)
    place = part.to(tl.int64) * rows + row
    part_lse = tl.load(part_lses + place, mask=part < count, other=float("-inf"))
    held = (part_lse > float("-inf"))[:, None] & (dims[None, :] < D)
    mixed = tl.load(parts + place[:, None] * D + dims[None, :], mask=held, other=0.0)
    peak = tl.max(part_lse, 0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp(part_lse - base)
    total = tl.sum(weights, 0)
    total = tl.where(total > 0.0, total, 1.0)  # no tokens at all: output 0, log-sum-exp -inf
    merged = tl.sum(mixed * weights[:, None], 0) / total
    tl.store(output + row * D + dims, merged.to(output.dtype.element_ty), mask=dims < D)
    tl.store(lse + row, peak + tl.log(total))


def _merge_listed(
    part0: tl.tensor, part1: tl.tensor, part2: tl.tensor, part3: tl.tensor,
    lse0: tl.tensor, lse1: tl.tensor, lse2: tl.tensor, lse3: tl.tensor, output: tl.tensor, lse: tl.tensor,
    COUNT: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (sequence, query head): up to four parts in separate tensors."""
    row = tl.program_id(0).to(tl.int64)
    dims = tl.arange(0, BLOCK_D)
    place = row * D + dims
    first = tl.load(lse0 + row)
    second = tl.load(lse1 + row, mask=COUNT > 1, other=float("-inf"))
    third = tl.load(lse2 + row, mask=COUNT > 2, other=float("-inf"))
    fourth = tl.load(lse3 + row, mask=COUNT > 3, other=float("-inf"))
    peak = tl.maximum(tl.maximum(first, second), tl.maximum(third, fourth))
    base = tl.where(peak == float("-inf"), 0.0, peak)
    first, second = tl.exp(first - base), tl.exp(second - base)
    third, fourth = tl.exp(third - base), tl.exp(fourth - base)
    # A part without tokens is not read: it may hold NaN.
    mixed = first * tl.load(part0 + place, mask=dims < tl.where(first > 0.0, D, 0), other=0.0).to(tl.float32)
    mixed += second * tl.load(part1 + place, mask=dims < tl.where(second > 0.0, D, 0), other=0.0).to(tl.float32)
    mixed += third * tl.load(part2 + place, mask=dims < tl.where(third > 0.0, D, 0), other=0.0).to(tl.float32)
    mixed += fourth * tl.load(part3 + place, mask=dims < tl.where(fourth > 0.0, D, 0), other=0.0).to(tl.float32)
    total = first + second + third + fourth
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(output + place, (mixed / total).to(output.dtype.element_ty), mask=dims < D)
    tl.store(lse + row, peak + tl.log(total))


_merge_stacked_kernel = triton.jit(_merge_stacked)
_merge_listed_kernel = triton.jit(_merge_listed)


def merge_attention(outputs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; see `kvviz_kernels.merge_attention`. One launch for up to four parts."""
    dtype = outputs[0].dtype
    output, lse = _merge_few(outputs[:MAX_LISTED], lses[:MAX_LISTED], dtype if len(outputs) <= MAX_LISTED else None)
    rest = MAX_LISTED - 1
    for start in range(MAX_LISTED, len(outputs), rest):
        is_last = start + rest >= len(outputs)
        parts, part_lses = [output, *outputs[start : start + rest]], [lse, *lses[start : start + rest]]
        output, lse = _merge_few(parts, part_lses, dtype if is_last else None)
    return output, lse


def merge_stacked(outputs: Tensor, lses: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Output [B, Q, D] in `dtype` and log-sum-exp [B, Q] of parts [N, B, Q, D] and [N, B, Q], N at most MAX_STACKED."""
    count, batch, heads, width = outputs.shape
    assert count <= MAX_STACKED
    output = torch.empty(batch, heads, width, dtype=dtype, device=outputs.device)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=outputs.device)
    _merge_stacked_kernel[(batch * heads,)](
        outputs, lses, output, lse, count, batch * heads,
        D=width, BLOCK_N=triton.next_power_of_2(count), BLOCK_D=triton.next_power_of_2(width), num_warps=_WARPS,
    )  # fmt: skip
    return output, lse


def _merge_few(outputs: list[Tensor], lses: list[Tensor], dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """At most four parts merged; float32 without a dtype, so that parts merged again are not rounded in between."""
    batch, heads, width = outputs[0].shape
    output = torch.empty(batch, heads, width, dtype=dtype or torch.float32, device=outputs[0].device)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=output.device)
    if output.numel() == 0:
        return output, lse
    absent = MAX_LISTED - len(outputs)
    parts = [part.contiguous() for part in (*outputs, *outputs[:1] * absent)]
    part_lses = [part.contiguous() for part in (*lses, *lses[:1] * absent)]
    _merge_listed_kernel[(batch * heads,)](
        *parts, *part_lses, output, lse,
        COUNT=len(outputs), D=width, BLOCK_D=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return output, lse
