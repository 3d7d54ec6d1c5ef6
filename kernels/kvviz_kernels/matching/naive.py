"""Chunked matching in plain torch, on any device, arranged for the caches of a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .shared import count_links

BLOCK_SIMILARITIES = 2**18  # held at once (1 MiB), which stay in a CPU's cache between passes


def soft_match(keys: Tensor, chunk_size: int | None) -> tuple[Tensor, Tensor]:
    """Partners and similarities; see `kvviz_kernels.soft_match`."""
    length, width = keys.shape[-2:]
    size = min(chunk_size or length, length)
    rows = keys.reshape(-1, length, width)
    links = count_links(length, chunk_size)
    partners = torch.empty(len(rows), links, dtype=torch.int64, device=keys.device)
    similarities = torch.empty(len(rows), links, dtype=torch.float32, device=keys.device)
    whole, of_whole = length - length % max(size, 1), count_links(length - length % max(size, 1), chunk_size)
    for row, partner, similarity in zip(rows, partners, similarities, strict=True):
        # head by head, so that the products do not depend on the batch
        unit = F.normalize(row.float(), dim=-1, eps=torch.finfo(torch.float32).tiny)
        if of_whole:
            _match(unit[:whole], size, 0, partner[:of_whole], similarity[:of_whole])
        if links > of_whole:
            _match(unit[whole:], length - whole, whole, partner[of_whole:], similarity[of_whole:])
    shape = (*keys.shape[:-2], links)
    return partners.view(shape), similarities.view(shape)


def _match(unit: Tensor, size: int, first: int, partners: Tensor, similarities: Tensor) -> None:
    """Fill partners and similarities [A] of unit keys [L, D], starting at position `first`; all chunks are full."""
    sources, targets = (size + 1) // 2, size // 2
    chunks = unit.unflatten(0, (-1, size))  # [chunks, size, D]
    starts = torch.arange(first, first + len(unit), size, device=unit.device)[:, None]
    partners, similarities = partners.view(-1, sources), similarities.view(-1, sources)
    at_once = max(1, BLOCK_SIMILARITIES // (sources * targets))  # chunks; if one is too large, part of its A tokens
    part = min(sources, max(1, BLOCK_SIMILARITIES // targets))
    for chunk in range(0, len(chunks), at_once):
        some = slice(chunk, chunk + at_once)
        for begin in range(0, sources, part):
            block = slice(begin, begin + part)
            best, place = _largest(chunks[some, 0::2][:, block] @ chunks[some, 1::2].mT)
            similarities[some, block] = best
            partners[some, block] = place * 2 + 1 + starts[some]


def _largest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Largest scores of the last dimension, and their places; ties go to the first."""
    # NumPy's argmax is vectorised: 0.5 ms for 12,288 x 128 scores, where torch's takes 1.6 ms (EPYC, 1 thread).
    place = torch.from_numpy(scores.numpy().argmax(-1)) if scores.is_cpu else scores.argmax(-1)
    return scores.gather(-1, place[..., None])[..., 0], place
