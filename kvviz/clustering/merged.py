"""Merged: centroids that stand for several tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Merged:
    """Centroids that stand for several tokens: keys, values [B, H, C, D] and degree [B, H, C] (0 for a pad).

    `members` [B, H, L] int32, where it is known, names the centroid of each token, -1 for a token that joined none.
    """

    keys: Tensor
    values: Tensor
    degree: Tensor
    members: Tensor | None = None


def stack_merged(parts: list[Merged | None], starts: list[int] | None = None) -> Merged | None:
    """Merged tokens of a batch from those of each row, padded with degree 0; None where no row has any.

    `members` are kept where `starts` gives each row's left padding and every row has them.
    """
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    none = Merged(like.keys[:, :, :0], like.values[:, :, :0], like.degree[..., :0])
    every = [part or none for part in parts]
    count = max(part.degree.shape[-1] for part in every)
    keys, values = (
        torch.cat([pad(tensor, (0, 0, 0, count - tensor.shape[2])) for tensor in tensors])
        for tensors in ([part.keys for part in every], [part.values for part in every])
    )
    degree = torch.cat([pad(part.degree, (0, count - part.degree.shape[-1])) for part in every])
    known = [part.members for part in every if part.members is not None]
    if starts is None or len(known) < len(every):
        return Merged(keys, values, degree)
    shifted = [pad(members, (start, 0), value=-1) for members, start in zip(known, starts, strict=True)]
    return Merged(keys, values, degree, torch.cat(shifted))
