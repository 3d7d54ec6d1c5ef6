"""Chunked bipartite matching: the most similar neighbour of every second token."""

from __future__ import annotations

from torch import Tensor

from ..dispatch import Impl, use_fused
from . import naive
from .shared import count_links, link_sources

__all__ = ["count_links", "link_sources", "soft_match"]


def soft_match(keys: Tensor, chunk_size: int | None, *, impl: Impl = "auto") -> tuple[Tensor, Tensor]:
    """Each A token's partner, its position int64 [..., A], and the cosine similarity of the two, float32 [..., A].

    keys [..., L, D], any float dtype, finite; computed in float32. The sequence is cut into chunks of `chunk_size`
    tokens (None: one chunk); in a chunk the first token, the third and so on are A, the others B. A token's partner is
    the token of B in its chunk with the largest cosine similarity, the earliest of equals; a key of zeros has
    similarity 0 to every key. The A tokens are those of `link_sources`, ascending; a last chunk of one token has none.

    L · chunk_size / 4 similarities a head. The naive form holds about 1 MiB of them at once, the fused one a tile a
    program. Raises ValueError for a chunk size below 2.

    Source: bipartite soft matching inside chunks, CentroidKV (OpenReview T3EeupQhGj), section 5.2.
    """
    if chunk_size is not None and chunk_size < 2:
        raise ValueError(f"soft_match: got chunk_size={chunk_size}; wanted at least 2, or None for one chunk")
    if use_fused("soft_match", impl, keys):
        from . import fused

        return fused.soft_match(keys, chunk_size)
    return naive.soft_match(keys, chunk_size)
