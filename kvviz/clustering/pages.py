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
