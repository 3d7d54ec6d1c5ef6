"""`Selection`, the tokens that a step attends to, and the choice of tokens by score under a budget."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from kvviz_kernels.selection import GROUPS, Group, group_scores, reduce_group, take_best, take_clusters
from torch import Tensor
from torch.nn.functional import pad

from ..clustering.merged import Merged, stack_merged

__all__ = [
    "GROUPS",
    "Group",
    "Selection",
    "ValueCorrection",
    "add_sinks_and_recent",
    "group_scores",
    "member_mask",
    "packed_places",
    "positions",
    "reduce_group",
    "stack_positions",
    "stack_rows",
    "take_groups",
    "take_tokens",
    "to_selection_heads",
]


@dataclass(frozen=True)
class ValueCorrection:
    """A value correction: output = (1 − share) · attention output + share · values.

    values [B, H, D] and share [B, Q] float32.
    """

    values: Tensor
    share: Tensor


@dataclass(frozen=True)
class Selection:
    """The tokens that one decode step attends to.

    `indices` [B, H, S] int64 are ascending, unique positions, padded with -1 ([B, Q, S] for group="each"). `groups`
    [B, H, S] int32 is the cluster, page or block of each token, -1 if it has none (sinks, recent and newly generated
    tokens). `scores` [B, H, S] float32 is the score of each token, NaN if it was not ranked. Both are None if the
    layer's context does not ask for details. `padded` is False if the method knows that `indices` has no -1.

    `merged` centroids are attended to in addition, each with the weight of its degree. `bias` [B, R, S] float32 is
    added to the tokens' logits. `value_correction` mixes a fixed vector into the output. `host_part` is a range of
    slots (start, stop) whose partial attention is computed where those tokens are stored and merged by log-sum-exp; the
    result is the same.
    """

    indices: Tensor
    groups: Tensor | None = None
    scores: Tensor | None = None
    merged: Merged | None = None
    padded: bool = False
    bias: Tensor | None = None
    value_correction: ValueCorrection | None = None
    host_part: tuple[int, int] | None = None

    @property
    def entries(self) -> Tensor:
        """The number of entries of the cache that each row attends to, int64 [B, R]: tokens, and centroids."""
        tokens = (self.indices >= 0).sum(-1)
        if self.merged is None:
            return tokens
        return tokens + to_selection_heads((self.merged.degree > 0).sum(-1), tokens.shape[1])


def to_selection_heads(tensor: Tensor, heads: int) -> Tensor:
    """A tensor [B, H, ...] per KV head as one per selection head: unchanged, or repeated to query heads [B, Q, ...]."""
    kv_heads = tensor.shape[1]
    return tensor if heads == kv_heads else tensor.repeat_interleave(heads // kv_heads, dim=1)


def member_mask(indices: Tensor, length: int) -> Tensor:
    """Whether each of `length` positions is among the indices [..., S], of which -1 is padding: bool [..., length]."""
    mask = torch.zeros((*indices.shape[:-1], length + 1), dtype=torch.bool, device=indices.device)
    return mask.scatter_(-1, torch.where(indices < 0, length, indices), True)[..., :-1]  # the last slot is for padding


def packed_places(staying: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending places int64 [B, R, K] of what stays, bool [B, R, N], and which of them are pads, bool [B, R, K]."""
    counts = staying.sum(-1, keepdim=True)
    width = int(counts.max()) if counts.numel() else 0
    places = (~staying).to(torch.uint8).argsort(dim=-1, stable=True)[..., :width]
    return places, torch.arange(width, device=staying.device) >= counts


def take_tokens(scores: Tensor, budget: int, *, start: int = 0, details: bool = False) -> Selection:
    """A selection of the `budget` tokens with the best scores [B, R, L] (no NaN); ties go to the earlier token.

    The first score belongs to position `start`.
    """
    count = max(min(budget, scores.shape[-1]), 0)
    indices = take_best(scores, count)  # [B, R, S]
    chosen_scores = scores.gather(-1, indices).float() if details else None
    if start:
        indices.add_(start)
    return Selection(indices, torch.full_like(indices, -1, dtype=torch.int32) if details else None, chosen_scores)


def take_groups(
    scores: Tensor, sizes: Tensor, offsets: Tensor, order: Tensor, budget: int, *, details: bool = False
) -> Selection:
    """A selection of the best groups within the budget; the last group is trimmed to fit.

    scores [B, R, C] rank the groups, R a multiple of H. sizes [B, H, C], offsets [B, H, C+1] and order [B, H, L] hold
    their tokens: order lists positions group by group. Each row gets min(budget, L) ascending positions. Source:
    ClusterKV (arXiv 2412.03213), section IV-C: sort, gather sizes, prefix sum, trim.
    """
    return Selection(*take_clusters(scores, sizes, offsets, order, budget, details=details))


@lru_cache(maxsize=64)
def positions(start: int, stop: int, batch: int, heads: int, device: torch.device) -> Tensor:
    """The positions start to stop - 1 for every head, [B, R, stop - start]; shared, so they must not be changed.

    All layers of a step need the same ranges: caching them saves seven small operations per layer.
    """
    return torch.arange(start, stop, device=device).expand(batch, heads, -1).contiguous()


def add_sinks_and_recent(selection: Selection, sinks: int = 0, recent: tuple[int, int] = (0, 0)) -> Selection:
    """The selection with the first `sinks` positions and the range `recent` added, both without scores.

    The padding of the selection stays in the middle.
    """
    chosen = selection.indices
    batch, heads, _ = chosen.shape
    first = positions(0, sinks, batch, heads, chosen.device)
    last = positions(*recent, batch, heads, chosen.device)

    def wider(tensor: Tensor | None, fill: float) -> Tensor | None:
        return None if tensor is None else pad(tensor, (sinks, last.shape[-1]), value=fill)

    return Selection(
        torch.cat([first, chosen, last], dim=-1),
        wider(selection.groups, -1),
        wider(selection.scores, torch.nan),
        selection.merged,
        selection.padded,
        wider(selection.bias, 0.0),
        selection.value_correction,
        None if selection.host_part is None else (selection.host_part[0] + sinks, selection.host_part[1] + sinks),
    )


def stack_rows(selections: list[Selection], starts: list[int]) -> Selection:
    """One selection for a batch from one per row, shifted by the row's left padding and padded with -1.

    Host parts differ between rows, so their slots are attended to with the others.
    """
    biases = [s.bias for s in selections]
    if any(bias is not None for bias in biases):
        zeros = [torch.zeros(s.indices.shape, device=s.indices.device) for s in selections]
        biases = [zero if bias is None else bias for zero, bias in zip(zeros, biases, strict=True)]
    return Selection(
        stack_positions([s.indices for s in selections], starts),
        _stack([s.groups for s in selections], -1),
        _stack([s.scores for s in selections], torch.nan),
        stack_merged([s.merged for s in selections], starts),
        padded=True,
        bias=_stack(biases, 0.0),
        value_correction=_stack_corrections([s.value_correction for s in selections]),
    )


def stack_positions(parts: list[Tensor], starts: list[int]) -> Tensor:
    """Positions [B, R, S] of a batch from one tensor per row, shifted by the row's left padding and padded with -1."""
    return _padded([torch.where(part < 0, -1, part + start) for part, start in zip(parts, starts, strict=True)], -1)


def _stack(parts: list[Tensor | None], fill: float) -> Tensor | None:
    """Rows [B, R, S] of all parts, padded to the widest; None if a part is None."""
    known = [part for part in parts if part is not None]
    return _padded(known, fill) if len(known) == len(parts) else None


def _padded(parts: list[Tensor], fill: float) -> Tensor:
    slots = max(part.shape[-1] for part in parts)
    return torch.cat([pad(part, (0, slots - part.shape[-1]), value=fill) for part in parts])


def _stack_corrections(parts: list[ValueCorrection | None]) -> ValueCorrection | None:
    first = next((part for part in parts if part is not None), None)
    if first is None:
        return None
    zero = ValueCorrection(torch.zeros_like(first.values), torch.zeros_like(first.share))
    filled = [part or zero for part in parts]
    return ValueCorrection(torch.cat([part.values for part in filled]), torch.cat([part.share for part in filled]))
