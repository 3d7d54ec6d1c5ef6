"""Attention over selected tokens in Triton: online softmax over rows that are read directly from the buffer.

Decoding is memory-bound: each selected row is read once and used by the few query heads of a group. So the slots are
split over enough programs to fill the GPU. Groups of 2 and more use tensor cores, padded to 16 queries: about 24
operations per byte read in half precision, where an H200 can do 206 (990 TFLOP/s and 4.8 TB/s, its datasheet).
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..tuning import Config, best_config, grid
from .fused_merge import MAX_STACKED, merge_stacked

# block: slots that a program reads at once; dot: the smallest group that uses tl.dot, smaller ones are multiplied
# element by element; programs: target number per multiprocessor, reached by splitting the slots.
DEFAULT: Config = {"block": 64, "dot": 2, "programs": 2, "num_warps": 4, "num_stages": 3}
# Tensor cores do not compute exact float32: tl.dot then computes all of its padding.
DEFAULT_FLOAT32: Config = {"block": 32, "dot": 16, "programs": 2, "num_warps": 4, "num_stages": 2}
# num_stages: of two dependent loads, so that 5 means two blocks in flight
CANDIDATES = grid(block=(32, 64, 128), dot=(2, 16), programs=(1, 2, 4), num_warps=(4, 8), num_stages=(2, 5))
ELEMENTWISE_TILE = 8192  # products [group, slots, channels] in registers at once, without tl.dot


def _attend(
    queries: tl.tensor, keys: tl.tensor, values: tl.tensor, indices: tl.tensor, bias: tl.tensor,
    output: tl.tensor, lse: tl.tensor, scale: tl.tensor, softcap: tl.tensor,
    slots: tl.tensor, slots_of_split: tl.tensor,
    key_batch: tl.tensor, key_head: tl.tensor, key_token: tl.tensor, key_element: tl.tensor,
    value_batch: tl.tensor, value_head: tl.tensor, value_token: tl.tensor, value_element: tl.tensor,
    ROWS: tl.constexpr, ROWS_OF_HEAD: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SOFTCAP: tl.constexpr, DOT: tl.constexpr, HALF: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (sequence, row of indices) and split: the query heads that share the row, over the split's slots.

    output and lse hold the splits one after another.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, head = row // ROWS, row % ROWS // ROWS_OF_HEAD
    key_base, value_base = batch * key_batch + head * key_head, batch * value_batch + head * value_head
    members, dims = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    query_mask = (members[:, None] < GROUP) & (dims[None, :] < D)
    query = tl.load(queries + (row * GROUP + members[:, None]) * D + dims[None, :], mask=query_mask, other=0.0)
    if not HALF:
        query = query.to(tl.float32)
    peak = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    mixed = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    first = split * slots_of_split
    last = tl.minimum(first + slots_of_split, slots)
    for start in range(first, last, BLOCK_S):
        slot = start + tl.arange(0, BLOCK_S)
        position = tl.load(indices + row * slots + slot, mask=slot < last, other=0).to(tl.int64)
        real = (slot < last) & (position >= 0)  # and not other=-1 above: Triton 3.2 fails to compile its pipelining
        row_mask = real[:, None] & (dims[None, :] < D)
        key_place = key_base + position[:, None] * key_token + dims[None, :] * key_element
        key = tl.load(keys + key_place, mask=row_mask, other=0.0)
        value_place = value_base + position[:, None] * value_token + dims[None, :] * value_element
        value = tl.load(values + value_place, mask=row_mask, other=0.0)
        if not HALF:
            key, value = key.to(tl.float32), value.to(tl.float32)
        if DOT:
            logits = tl.dot(query, tl.trans(key), input_precision="ieee")  # [BLOCK_G, BLOCK_S]
        else:
            logits = tl.sum(query.to(tl.float32)[:, None, :] * key.to(tl.float32)[None, :, :], 2)
        logits *= scale
        if HAS_SOFTCAP:
            logits = softcap * (2.0 * tl.sigmoid(2.0 * logits / softcap) - 1.0)  # tanh
        if HAS_BIAS:
            logits += tl.load(bias + row * slots + slot, mask=slot < last, other=0.0).to(tl.float32)[None, :]
        logits = tl.where(real[None, :], logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # no token so far: -inf minus -inf would be NaN
        weights = tl.exp(logits - base[:, None])
        shrink = tl.exp(peak - base)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        if not DOT:
            mixed += tl.sum(weights[:, :, None] * value.to(tl.float32)[None, :, :], 1)
        elif HALF:  # the weights as a sum of two half-precision numbers, since one would round them
            high = weights.to(value.dtype)
            low = (weights - high.to(tl.float32)).to(value.dtype)
            mixed += tl.dot(high, value)
            mixed += tl.dot(low, value)
        else:
            mixed += tl.dot(weights, value, input_precision="ieee")
        peak = new_peak
    total = tl.where(total > 0.0, total, 1.0)  # no token: output 0; the log-sum-exp is the peak, -inf
    place = (split * tl.num_programs(0) + row) * GROUP + members
    output_value = (mixed / total[:, None]).to(output.dtype.element_ty)
    tl.store(output + place[:, None] * D + dims[None, :], output_value, mask=query_mask)
    tl.store(lse + place, peak + tl.log(total), mask=members < GROUP)


_attend_kernel = triton.jit(_attend)  # not a decorator, so that type checkers without Triton see the function


def gather_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
    padded: bool = True,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; see `kvviz_kernels.gather_attention`. `padded` has no effect: padding is free here."""
    batch, heads, width = queries.shape
    kv_heads, (rows, slots) = keys.shape[1], indices.shape[1:]
    if batch == 0 or slots == 0:
        empty = queries.new_full((batch, heads), float("-inf"), dtype=torch.float32)
        return torch.zeros_like(queries), empty
    half = queries.dtype == keys.dtype == values.dtype and queries.dtype in _halves(queries.device)
    if config is None:
        name, default = ("gather_attention", DEFAULT) if half else ("gather_attention_float32", DEFAULT_FLOAT32)
        config = best_config(name, queries.device, default)
    group = heads // rows
    dot = group >= config["dot"]
    block_d = max(16, triton.next_power_of_2(width))
    block_g = max(16, triton.next_power_of_2(group)) if dot else triton.next_power_of_2(group)  # tl.dot: 16 of each
    block_s = config["block"] if dot else max(1, min(config["block"], ELEMENTWISE_TILE // (block_g * block_d)))
    splits, slots_of_split = _split(batch * rows, slots, block_s, config["programs"], queries.device)
    queries, indices = queries.contiguous(), indices.contiguous()
    output_dtype = queries.dtype if splits == 1 else torch.float32
    output = torch.empty(splits, batch, heads, width, dtype=output_dtype, device=queries.device)
    lse = torch.empty(splits, batch, heads, dtype=torch.float32, device=queries.device)
    _attend_kernel[(batch * rows, splits)](
        queries, keys, values, indices, queries if bias is None else bias.contiguous(), output, lse,
        scale, 1.0 if softcap is None else softcap, slots, slots_of_split, *keys.stride(), *values.stride(),
        ROWS=rows, ROWS_OF_HEAD=rows // kv_heads, GROUP=group, D=width,
        HAS_BIAS=bias is not None, HAS_SOFTCAP=softcap is not None, DOT=dot, HALF=half,
        BLOCK_G=block_g, BLOCK_S=block_s, BLOCK_D=block_d,
        num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    return (output[0], lse[0]) if splits == 1 else merge_stacked(output, lse, queries.dtype)


def _halves(device: torch.device) -> tuple[torch.dtype, ...]:
    """Dtypes that are multiplied directly; Triton's interpreter (3.9) would multiply bfloat16's bits as integers."""
    return (torch.float16, torch.bfloat16) if device.type == "cuda" else (torch.float16,)


def _split(rows: int, slots: int, block: int, programs: int, device: torch.device) -> tuple[int, int]:
    """Number of splits that give each multiprocessor `programs` programs, and the slots per split, in whole blocks."""
    blocks = triton.cdiv(slots, block)
    splits = max(1, programs * _multiprocessors(device) // rows)
    blocks_of_split = triton.cdiv(blocks, min(splits, blocks, MAX_STACKED))
    return triton.cdiv(blocks, blocks_of_split), blocks_of_split * block


@cache
def _multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU; 1 for Triton's interpreter, where more programs take more time."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
