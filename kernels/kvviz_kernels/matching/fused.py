"""Chunked matching in Triton: no matrix of similarities in memory."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor  # annotations of kernels must be names that Triton knows, unlike typing.Any

from ..tuning import Config, best_config
from .shared import count_links

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEFAULT: Config = {"block_sources": 64, "block_targets": 64, "num_warps": 4}
CANDIDATES: list[Config] = [
    {"block_sources": sources, "block_targets": targets, "num_warps": warps}
    for sources, targets, warps in [(32, 32, 4), (64, 32, 4), (64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8)]
]


def _inverse_norm(squares: tensor) -> tensor:
    """1 / norm from the sum of squares; 0 for zero vectors. Rounded as on the CPU, since ties depend on it."""
    norm = tl.sqrt_rn(tl.where(squares > 0.0, squares, 1.0))
    return tl.where(squares > 0.0, tl.div_rn(tl.full(norm.shape, 1.0, tl.float32), norm), 0.0)


_inverse = triton.jit(_inverse_norm)


def _match(
    keys: tensor, partners: tensor, similarities: tensor,
    row_stride: tensor, token_stride: tensor, element_stride: tensor,
    length: tensor, size: tensor, links: tensor, blocks: tensor,
    D: tl.constexpr, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per block of A tokens of one chunk and head: goes over the chunk's B tokens."""
    row = tl.program_id(1).to(tl.int64)
    chunk, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    start = chunk * size
    here = tl.minimum(size, length - start)  # tokens of this chunk
    sources, targets = (here + 1) // 2, here // 2
    dims = tl.arange(0, BLOCK_D)
    base = keys + row * row_stride
    source_index = block * BLOCK_A + tl.arange(0, BLOCK_A)
    place = (start + 2 * source_index[:, None]).to(tl.int64) * token_stride + dims[None, :] * element_stride
    source = tl.load(base + place, mask=(source_index[:, None] < sources) & (dims[None, :] < D), other=0.0)
    best = tl.full([BLOCK_A], float("-inf"), tl.float32)
    partner = tl.zeros([BLOCK_A], tl.int32)
    for first in range(0, targets, BLOCK_B):
        target_index = first + tl.arange(0, BLOCK_B)
        target_token = (start + 2 * target_index[None, :] + 1).to(tl.int64)
        target_place = target_token * token_stride + dims[:, None] * element_stride
        target = tl.load(base + target_place, mask=(target_index[None, :] < targets) & (dims[:, None] < D), other=0.0)
        wide_target = target.to(tl.float32)
        inverse = _inverse(tl.sum(wide_target * wide_target, 0))
        # Products of half-precision numbers are exact in float32; the A key's norm does not change the best partner.
        scores = tl.dot(source, target, input_precision="ieee") * inverse[None, :]
        scores = tl.where(target_index[None, :] < targets, scores, float("-inf"))
        top = tl.max(scores, 1)
        partner = tl.where(top > best, tl.argmax(scores, 1, tie_break_left=True) + first, partner)
        best = tl.maximum(best, top)
    wide = source.to(tl.float32)
    best = tl.where(best > float("-inf"), best, 0.0) * _inverse(tl.sum(wide * wide, 1))
    slot = row * links + chunk * ((size + 1) // 2) + source_index  # all chunks but the last have `size` tokens
    real = source_index < tl.where(targets > 0, sources, 0)  # a last chunk of a single token has no partner
    tl.store(partners + slot, (start + 2 * partner + 1).to(tl.int64), mask=real)
    tl.store(similarities + slot, best, mask=real)


_match_kernel = triton.jit(_match)  # not a decorator, so that type checkers without Triton see the function


def soft_match(keys: Tensor, chunk_size: int | None, *, config: Config | None = None) -> tuple[Tensor, Tensor]:
    """Partners and similarities; see `kvviz_kernels.soft_match`."""
    length, width = keys.shape[-2:]
    size = min(chunk_size or length, length)
    links = count_links(length, chunk_size)
    rows = keys.reshape(-1, length, width)
    rows = rows.float() if INTERPRETED else rows  # the interpreter would multiply the bits of bfloat16
    partners = torch.empty(len(rows), links, dtype=torch.int64, device=keys.device)
    similarities = torch.empty(len(rows), links, dtype=torch.float32, device=keys.device)
    if links and len(rows):
        chosen = config or best_config("soft_match", keys.device, DEFAULT)
        blocks = triton.cdiv((size + 1) // 2, chosen["block_sources"])
        _match_kernel[(triton.cdiv(length, size) * blocks, len(rows))](
            rows, partners, similarities, *rows.stride(), length, size, links, blocks,
            D=width, BLOCK_A=chosen["block_sources"], BLOCK_B=chosen["block_targets"],
            BLOCK_D=max(16, triton.next_power_of_2(width)), num_warps=chosen["num_warps"],
        )  # fmt: skip
    shape = (*keys.shape[:-2], links)
    return partners.view(shape), similarities.view(shape)
