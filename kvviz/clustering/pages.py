"""Pages: runs of consecutive tokens with the channel-wise bounds of their keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidInputError


@dataclass(frozen=True)
class Pages:
    """Channel-wise bounds of every page: `low`, `high` and `mean`, each [..., P, D]; the last page may be short."""

    page_size: int
    length: int
    low: Tensor
    high: Tensor
    mean: Tensor


def page_bounds(keys: Tensor, page_size: int = 16) -> Pages:
    """Channel-wise minimum, maximum and mean of each page of keys [..., L, D].

    Raises InvalidInputError for a page size below 1. Source: Quest (arXiv 2406.10774), section 3.3.
    """
    if page_size < 1:
        raise InvalidInputError("page_bounds: page_size", page_size, "an int >= 1")
    length = keys.shape[-2]
    missing = -length % page_size

    def by_page(fill: float) -> Tensor:
        pages: Tensor = pad(keys, (0, 0, 0, missing), value=fill).unflatten(-2, (-1, page_size))  # [..., P, page, D]
        return pages

    zeros = by_page(0.0)
    counts = torch.full((zeros.shape[-3], 1), page_size, device=keys.device)
    if missing:
        counts[-1] -= missing
    mean = (zeros.sum(-2) / counts).to(keys.dtype)
    return Pages(page_size, length, by_page(torch.inf).amin(-2), by_page(-torch.inf).amax(-2), mean)


def join_pages(first: Pages, second: Pages) -> Pages:
    """The pages of both, in order; every page of the first must be full.

    Raises InvalidInputError for another page size or a short last page, whose tokens would be misplaced.
    """
    if first.page_size != second.page_size or first.length % first.page_size:
        got = f"pages of {first.page_size} over {first.length} tokens, then pages of {second.page_size}"
        raise InvalidInputError("join_pages", got, "equal page sizes and a full last page of the first")
    low, high, mean = (
        torch.cat(pair, dim=-2)
        for pair in ((first.low, second.low), (first.high, second.high), (first.mean, second.mean))
    )
    return Pages(first.page_size, first.length + second.length, low, high, mean)
