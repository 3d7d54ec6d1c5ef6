"""Merged: centroids that stand for several tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Merged:
    """Centroids that stand for several tokens: keys, values [B, H, C, D] and degree [B, H, C].

    A centroid of degree 0 is not attended to. `members` [B, H, L] int32, if known, is the centroid of each token, -1
    for a token that no attended centroid stands for. If each query head attends to centroids of its own choice, degree
    is [B, Q, C] and members are [B, Q, L]; keys and values stay those of the KV heads.
    """

    keys: Tensor
    values: Tensor
    degree: Tensor
    members: Tensor | None = None


def no_centroids(keys: Tensor, values: Tensor, members: bool) -> Merged:
    """No centroid, in the shapes of keys and values [B, H, L, D]; new tensors: a view would keep all of these alive."""
    heads = keys.shape[:2]
    return Merged(
        keys.new_empty((*heads, 0, keys.shape[-1])),
        values.new_empty((*heads, 0, values.shape[-1])),
        keys.new_empty((*heads, 0), dtype=torch.int32),
        keys.new_empty((*heads, 0), dtype=torch.int32) if members else None,
    )


def with_tokens(merged: Merged, keys: Tensor, values: Tensor) -> Merged:
    """The centroids, followed by tokens with keys and values [B, H, L, D] as centroids of degree 1."""
    batch, heads, count = merged.degree.shape
    members = merged.members
    if members is not None:
        new = torch.arange(count, count + keys.shape[2], dtype=torch.int32, device=members.device)
        members = torch.cat([members, new.expand(batch, heads, -1)], dim=-1)
    return Merged(
        torch.cat([merged.keys, keys], dim=2),
        torch.cat([merged.values, values], dim=2),
        pad(merged.degree, (0, keys.shape[2]), value=1),
        members,
    )


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
