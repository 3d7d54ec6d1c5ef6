"""Pages: runs of consecutive tokens with the channel-wise bounds of their keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInputError


@dataclass(frozen=True)
class Pages:
    """Channel-wise bounds of each page: `low`, `high` and `mean`, each [..., P, D]; the last page may be shorter."""

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
    whole = length - length % page_size
    low, high = full_page_bounds(keys[..., :whole, :], page_size)
    mean = keys[..., :whole, :].unflatten(-2, (-1, page_size)).sum(-2) / page_size
    if whole < length:
        last = keys[..., whole:, :]
        low = torch.cat([low, last.amin(-2, keepdim=True)], dim=-2)
        high = torch.cat([high, last.amax(-2, keepdim=True)], dim=-2)
        mean = torch.cat([mean, last.sum(-2, keepdim=True) / (length - whole)], dim=-2)
    return Pages(page_size, length, low, high, mean)


def full_page_bounds(keys: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Channel-wise minimum and maximum [..., P, D] of each page of keys [..., P · page_size, D], without a copy."""
    by_page: Tensor = keys.unflatten(-2, (-1, page_size))  # [..., P, page, D]
    return by_page.amin(-2), by_page.amax(-2)
