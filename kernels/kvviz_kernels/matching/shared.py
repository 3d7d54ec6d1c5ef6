"""Shared parts of the naive and the fused matching: the positions and the number of A tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def count_links(length: int, chunk_size: int | None) -> int:
    """Number of A tokens with a partner among `length` tokens: those whose chunk has a B token."""
    size = min(chunk_size or length, length)
    if size < 2:
        return 0
    whole, rest = divmod(length, size)
    return whole * ((size + 1) // 2) + ((rest + 1) // 2 if rest > 1 else 0)


def link_sources(length: int, chunk_size: int | None, device: torch.device) -> Tensor:
    """Positions of the A tokens with a partner, int64 [A], ascending."""
    size = min(chunk_size or length, length)
    links = count_links(length, chunk_size)
    numbers = torch.arange(links, device=device)
    if links == 0:
        return numbers
    per_chunk = (size + 1) // 2  # an odd chunk starts and ends with an A token
    return numbers // per_chunk * size + numbers % per_chunk * 2
