"""Scores of product-quantized keys in Triton: small tables that stay in the L1 cache, several programs per head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor

from ..tuning import Config, best_config, grid
from .quantized import part_tables

DEFAULT: Config = {"block": 512, "blocks": 4, "num_warps": 4}  # tokens at once, and how often per program
CANDIDATES = grid(block=(256, 512, 1024), blocks=(1, 4, 8), num_warps=(2, 4, 8))


def _logits(
    tables: tensor, codes: tensor, token: tensor, inside: tensor, code_token: tensor, scale: tensor, softcap: tensor,
    PARTS: tl.constexpr, C: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_SOFTCAP: tl.constexpr, BLOCK: tl.constexpr,
) -> tensor:  # fmt: skip
    """Scores [BLOCK] of one query head: sums of its tables [PARTS, C] at the tokens' codes."""
    total = tl.zeros([BLOCK], tl.float32)
    for part in tl.static_range(PARTS):
        code = tl.load(codes + token.to(tl.int64) * code_token + part, mask=inside, other=0).to(tl.int32)
        total += tl.load(tables + part * C + code, mask=inside, other=0.0, eviction_policy="evict_last")
    if HAS_SCALE:
        total *= scale
        if HAS_SOFTCAP:
            total = softcap * (2.0 * tl.sigmoid(2.0 * total / softcap) - 1.0)  # tanh
    return tl.where(inside, total, float("-inf"))


_logits_function = triton.jit(_logits)


def _totals(
    tables: tensor, codes: tensor, peaks: tensor, totals: tensor, length: tensor, splits: tensor, scale: tensor,
    softcap: tensor,
    code_batch: tensor, code_head: tensor, code_token: tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """One program per range of tokens of one head: each query head's largest logit and sum of exponentials."""
    split, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row_codes = codes + row // HEADS * code_batch + row % HEADS * code_head
    for member in range(GROUP):
        table = tables + (row * GROUP + member) * PARTS * C
        peak = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        for block in range(BLOCKS):
            token = (split * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
            logit = _logits_function(
                table, row_codes, token, token < length, code_token, scale, softcap, PARTS, C, True, HAS_SOFTCAP, BLOCK
            )
            above = tl.maximum(peak, logit)
            base = tl.where(above == float("-inf"), 0.0, above)  # a lane past the end: -inf minus -inf would be NaN
            total = total * tl.exp(peak - base) + tl.exp(logit - base)
            peak = above
        largest = tl.max(peak, 0)  # a split has at least one token
        tl.store(peaks + (row * GROUP + member) * splits + split, largest)
        tl.store(totals + (row * GROUP + member) * splits + split, tl.sum(total * tl.exp(peak - largest), 0))


_totals_kernel = triton.jit(_totals)


def _weigh(
    tables: tensor, codes: tensor, peaks: tensor, totals: tensor, output: tensor, length: tensor, splits: tensor,
    scale: tensor, softcap: tensor,
    code_batch: tensor, code_head: tensor, code_token: tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, REDUCE: tl.constexpr, PARTS: tl.constexpr, C: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """One program per range of tokens of one head: its query heads' scores or weights, reduced and written once."""
    row = tl.program_id(1).to(tl.int64)
    row_codes = codes + row // HEADS * code_batch + row % HEADS * code_head
    split = tl.arange(0, BLOCK_SPLITS)
    for block in range(BLOCKS):
        token = (tl.program_id(0) * BLOCKS + block) * BLOCK + tl.arange(0, BLOCK)
        inside = token < length
        result = tl.zeros([BLOCK], tl.float32)
        if REDUCE == "max":
            result += float("-inf")
        for member in range(GROUP):
            head = row * GROUP + member
            score = _logits_function(
                tables + head * PARTS * C, row_codes, token, inside, code_token, scale, softcap, PARTS, C,
                HAS_SCALE, HAS_SOFTCAP, BLOCK,
            )  # fmt: skip
            if HAS_SCALE:
                peak = tl.load(peaks + head * splits + split, mask=split < splits, other=float("-inf"))
                total = tl.load(totals + head * splits + split, mask=split < splits, other=0.0)
                largest = tl.max(peak, 0)
                score = tl.exp(score - largest) / tl.sum(total * tl.exp(peak - largest), 0)
            if REDUCE == "each":
                tl.store(output + head * length + token, score, mask=inside)
            elif REDUCE == "max":
                result = tl.maximum(result, score)
            else:
                result += score
        if REDUCE == "mean":
            result /= GROUP
        if REDUCE != "each":
            tl.store(output + row * length + token, result, mask=inside)


_weigh_kernel = triton.jit(_weigh)


def pq_scores(
    queries: Tensor,
    centroids: Tensor,
    codes: Tensor,
    *,
    group: str,
    scale: float | None = None,
    softcap: float | None = None,
    config: Config | None = None,
) -> Tensor:
    """Approximate scores of all tokens; see `kvviz_kernels.pq_scores`."""
    batch, heads, parts, count, _ = centroids.shape
    length = codes.shape[2]
    linear = scale is None and group in ("mean", "sum")
    tables = part_tables(queries, centroids, group if linear else "each").contiguous()  # [B, H, G or 1, m, C]
    members = tables.shape[2]
    rows = heads * members if group == "each" else heads
    output = torch.empty((batch, rows, length), dtype=torch.float32, device=queries.device)
    if not output.numel():
        return output
    config = config or best_config("pq_scores", queries.device, DEFAULT)
    if codes.stride(3) != 1:
        codes = codes.contiguous()
    splits = triton.cdiv(length, config["block"] * config["blocks"])
    peaks, totals = torch.empty((2, batch * heads * members, splits), dtype=torch.float32, device=queries.device)
    grid = (splits, batch * heads)
    cap = 1.0 if softcap is None else softcap
    factor = 1.0 if scale is None else scale
    sizes = {"HEADS": heads, "GROUP": members, "PARTS": parts, "C": count, "HAS_SOFTCAP": softcap is not None}
    blocks = {"BLOCK": config["block"], "BLOCKS": config["blocks"], "num_warps": config["num_warps"]}
    if scale is not None:
        _totals_kernel[grid](
            tables, codes, peaks, totals, length, splits, factor, cap, *codes.stride()[:3], **sizes, **blocks
        )
    _weigh_kernel[grid](
        tables, codes, peaks, totals, output, length, splits, factor, cap, *codes.stride()[:3],
        REDUCE=group, HAS_SCALE=scale is not None, BLOCK_SPLITS=triton.next_power_of_2(splits), **sizes, **blocks,
    )  # fmt: skip
    return output
