"""Chunked bipartite soft matching: the most similar neighbour of every second token."""

from __future__ import annotations

from torch import Tensor

from ..dispatch import Impl, use_fused
from . import naive
from .shared import count_links, link_sources

__all__ = ["count_links", "link_sources", "soft_match"]


def soft_match(keys: Tensor, chunk_size: int | None, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Position of each A token's partner, int64 [..., A], and their cosine similarity, float32 [..., A].

    keys [..., L, D], any float dtype, finite; computed in float32. The sequence is cut into chunks of `chunk_size`
    tokens (None: one chunk). In each chunk, the first, third, ... tokens are A tokens, the others B tokens. The partner
    of an A token is the B token of its chunk with the largest cosine similarity; ties go to the earliest. A zero key
    has similarity 0 to all. The A tokens are those of `link_sources`, ascending; a last chunk of one token has none.

    L · chunk_size / 4 similarities per head: the naive form holds about 1 MiB of them at once, the fused form one tile
    per program. Raises ValueError for a chunk size below 2.

    Source: bipartite soft matching inside chunks, CentroidKV (OpenReview T3EeupQhGj), section 5.2.
    """
    if chunk_size is not None and chunk_size < 2:
        raise ValueError(f"soft_match: got chunk_size={chunk_size}; wanted at least 2, or None for one chunk")
    if use_fused("soft_match", impl, keys):
        from . import fused

        return fused.soft_match(keys, chunk_size)
    return naive.soft_match(keys, chunk_size)
