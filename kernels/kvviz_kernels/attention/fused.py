"""Attention over selected tokens in Triton: online softmax, the selected rows read straight from the buffer."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_SLOTS = 64


def _attend(
    queries: Any, keys: Any, values: Any, indices: Any, bias: Any, output: Any, lse: Any,
    scale: Any, softcap: Any, slots: Any,
    key_batch: Any, key_head: Any, key_token: Any, key_element: Any,
    value_batch: Any, value_head: Any, value_token: Any, value_element: Any,
    ROWS: tl.constexpr, ROWS_OF_HEAD: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_G: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program a (sequence, row of indices): the query heads that share the row, over all its slots."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // ROWS, row % ROWS // ROWS_OF_HEAD
    key_base, value_base = batch * key_batch + head * key_head, batch * value_batch + head * value_head
    members, dims = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    query_place = (row * GROUP + members[:, None]) * D + dims[None, :]
    query_mask = (members[:, None] < GROUP) & (dims[None, :] < D)
    query = tl.load(queries + query_place, mask=query_mask, other=0.0).to(tl.float32) * scale
    peak = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    mixed = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for start in range(0, slots, BLOCK_S):
        slot = start + tl.arange(0, BLOCK_S)
        position = tl.load(indices + row * slots + slot, mask=slot < slots, other=-1)
        real = position >= 0
        key_place = key_base + position[None, :] * key_token + dims[:, None] * key_element
        key = tl.load(keys + key_place, mask=real[None, :] & (dims[:, None] < D), other=0.0).to(tl.float32)
        logits = tl.dot(query, key, input_precision="ieee")  # [BLOCK_G, BLOCK_S]
        if HAS_SOFTCAP:
            logits = softcap * (2.0 * tl.sigmoid(2.0 * logits / softcap) - 1.0)  # tanh
        if HAS_BIAS:
            logits += tl.load(bias + row * slots + slot, mask=slot < slots, other=0.0).to(tl.float32)[None, :]
        logits = tl.where(real[None, :], logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen yet: -inf less -inf would be NaN
        weights = tl.exp(logits - base[:, None])
        shrink = tl.exp(peak - base)
        value_place = value_base + position[:, None] * value_token + dims[None, :] * value_element
        value = tl.load(values + value_place, mask=real[:, None] & (dims[None, :] < D), other=0.0).to(tl.float32)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weights, value, input_precision="ieee")
        peak = new_peak
    total = tl.where(total > 0.0, total, 1.0)  # no token: output 0; the log-sum-exp is the peak, -inf
    tl.store(output + query_place, (mixed / total[:, None]).to(output.dtype.element_ty), mask=query_mask)
    tl.store(lse + row * GROUP + members, peak + tl.log(total), mask=members < GROUP)


_attend_kernel = triton.jit(_attend)  # called rather than a decorator: type checkers without Triton see the function


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
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; see `kvviz_kernels.gather_attention`. Pads cost nothing here: `padded` has no effect."""
    batch, heads, width = queries.shape
    kv_heads, (rows, slots) = keys.shape[1], indices.shape[1:]
    queries, indices = queries.contiguous(), indices.contiguous()
    output = torch.empty_like(queries)
    lse = torch.empty(batch, heads, dtype=torch.float32, device=queries.device)
    group = heads // rows
    _attend_kernel[(batch * rows,)](
        queries, keys, values, indices, queries if bias is None else bias.contiguous(), output, lse,
        scale, 1.0 if softcap is None else softcap, slots, *keys.stride(), *values.stride(),
        ROWS=rows, ROWS_OF_HEAD=rows // kv_heads, GROUP=group, D=width,
        HAS_BIAS=bias is not None, HAS_SOFTCAP=softcap is not None,
        BLOCK_G=max(16, triton.next_power_of_2(group)), BLOCK_S=BLOCK_SLOTS,  # tl.dot needs at least 16 of each
        BLOCK_D=max(16, triton.next_power_of_2(width)),
    )  # fmt: skip
    return output, lse
