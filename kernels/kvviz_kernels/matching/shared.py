"""What the naive and the fused matching share: where the tokens of A stand, and how many there are."""

from __future__ import annotations

import torch
from torch import Tensor


def count_links(length: int, chunk_size: int | None) -> int:
    """Tokens of A that have a partner among `length` tokens: those whose chunk has a token of B."""
    size = min(chunk_size or length, length)
    if size < 2:
        return 0
    whole, rest = divmod(length, size)
    return whole * ((size + 1) // 2) + ((rest + 1) // 2 if rest > 1 else 0)


def link_sources(length: int, chunk_size: int | None, device: torch.device) -> Tensor:
    """Positions of the tokens of A that have a partner, int64 [A], ascending."""
    size = min(chunk_size or length, length)
    links = count_links(length, chunk_size)
    own = torch.arange(links, device=device)
    if links == 0:
        return own
    each = (size + 1) // 2  # of a whole chunk; an odd one begins and ends with a token of A
    return own // each * size + own % each * 2
