"""Merged: centroids that stand for several tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Merged:
    """Centroids that stand for several tokens: keys, values [B, H, C, D] and degree [B, H, C] (0 for a pad).

    `members` [B, H, L] int32, if known, is the centroid of each token, -1 for a token that joined none.
    """

    keys: Tensor
    values: Tensor
    degree: Tensor
    members: Tensor | None = None


def stack_merged(parts: list[Merged | None], starts: list[int] | None = None) -> Merged | None:
    """Merged tokens of a batch from those of each row, padded with degree 0; None if no row has any.

    `members` are kept if `starts` gives each row's left padding and all rows have them.
    """
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    empty = Merged(like.keys[:, :, :0], like.values[:, :, :0], like.degree[..., :0])
    rows = [part or empty for part in parts]
    count = max(row.degree.shape[-1] for row in rows)
    keys, values = (
        torch.cat([pad(tensor, (0, 0, 0, count - tensor.shape[2])) for tensor in tensors])
        for tensors in ([row.keys for row in rows], [row.values for row in rows])
    )
    degree = torch.cat([pad(row.degree, (0, count - row.degree.shape[-1])) for row in rows])
    known = [row.members for row in rows if row.members is not None]
    if starts is None or len(known) < len(rows):
        return Merged(keys, values, degree)
    shifted = [pad(members, (start, 0), value=-1) for members, start in zip(known, starts, strict=True)]
    return Merged(keys, values, degree, torch.cat(shifted))
