"""Selection, and the step from scores to token positions under a budget."""

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
    "Blend",
    "Group",
    "Selection",
    "attend_all",
    "group_scores",
    "positions",
    "reduce_group",
    "rows_of_heads",
    "stack_positions",
    "stack_rows",
    "surround",
    "take_groups",
    "take_tokens",
]


@dataclass(frozen=True)
class Blend:
    """A fixed part of the output that no attended token gives: output = (1 − share) · attended + share · values.

    values [B, H, D] and share [B, Q] float32.
    """

    values: Tensor
    share: Tensor


@dataclass(frozen=True)
class Selection:
    """The tokens that one decode step attends.

    `indices` [B, H, S] int64 are positions, ascending and unique, -1 pads ([B, Q, S] where group="each").
    `groups` [B, H, S] int32 names the cluster, page or block each came from, -1 where a token was attended without
    being chosen (sinks, recent and newly generated tokens). `scores` [B, H, S] float32 is what the method ranked by,
    NaN where nothing was ranked. Both are None where the layer's context asks for no details. `padded` is False where
    the method knows that `indices` holds no -1.

    `merged` centroids are attended beside the tokens, each as its degree of tokens. `bias` [B, R, S] float32 is added
    to the tokens' logits. `blend` mixes a fixed vector into the output. `apart` are the slots (start, stop) whose
    attention is computed on its own, where those tokens are kept, and merged by log-sum-exp: the result is the same.
    """

    indices: Tensor
    groups: Tensor | None = None
    scores: Tensor | None = None
    merged: Merged | None = None
    padded: bool = False
    bias: Tensor | None = None
    blend: Blend | None = None
    apart: tuple[int, int] | None = None


def rows_of_heads(tensor: Tensor, rows: int) -> Tensor:
    """A per-KV-head tensor [B, H, ...] seen by rows of choice: itself, or repeated for each query head [B, Q, ...]."""
    heads = tensor.shape[1]
    return tensor if rows == heads else tensor.repeat_interleave(rows // heads, dim=1)


def take_tokens(scores: Tensor, budget: int, *, details: bool = False) -> Selection:
    """The `budget` best tokens of scores [B, R, L], none NaN: positions ascending, ties to the earlier token."""
    count = max(min(budget, scores.shape[-1]), 0)
    indices = take_best(scores, count)  # [B, R, S]
    if not details:
        return Selection(indices)
    return Selection(indices, torch.full_like(indices, -1, dtype=torch.int32), scores.gather(-1, indices).float())


def take_groups(
    scores: Tensor, sizes: Tensor, offsets: Tensor, order: Tensor, budget: int, *, details: bool = False
) -> Selection:
    """Tokens of the best groups, whole ones first and the last one trimmed, until the budget is met.

    scores [B, R, C] rank the groups; sizes [B, H, C], offsets [B, H, C+1] and order [B, H, L] say which tokens each
    holds (order lists positions group by group), R a multiple of H. Every row gives min(budget, L) positions,
    ascending. Source: ClusterKV (arXiv 2412.03213), section IV-C: sort, gather sizes, prefix sum, trim.
    """
    return Selection(*take_clusters(scores, sizes, offsets, order, budget, details=details))


@lru_cache(maxsize=64)
def positions(start: int, stop: int, batch: int, rows: int, device: torch.device) -> Tensor:
    """start to stop - 1 for every row, [B, R, stop - start]; shared, so not to be written to.

    Every layer of a step asks for the same few: keeping them saves seven small operations a layer.
    """
    return torch.arange(start, stop, device=device).expand(batch, rows, -1).contiguous()


def surround(selection: Selection, *, before: int = 0, after: tuple[int, int] = (0, 0)) -> Selection:
    """The selection with the first `before` positions and the range `after` added, attended without being chosen.

    Pads of the selection stay where they are, in the middle; what it blends or attends merged stays as it is.
    """
    chosen = selection.indices
    batch, rows, _ = chosen.shape
    first = positions(0, before, batch, rows, chosen.device)
    last = positions(*after, batch, rows, chosen.device)
    indices = torch.cat([first, chosen, last], dim=-1)

    def wider(tensor: Tensor | None, fill: float) -> Tensor | None:
        return None if tensor is None else pad(tensor, (before, last.shape[-1]), value=fill)

    return Selection(
        indices,
        wider(selection.groups, -1),
        wider(selection.scores, torch.nan),
        selection.merged,
        selection.padded,
        wider(selection.bias, 0.0),
        selection.blend,
    )


def attend_all(length: int, batch: int, rows: int, device: torch.device, *, details: bool = False) -> Selection:
    """Every one of `length` tokens, for every row."""
    nothing = torch.empty((batch, rows, 0), dtype=torch.int64, device=device)
    empty = Selection(nothing, nothing.to(torch.int32), nothing.float()) if details else Selection(nothing)
    return surround(empty, after=(0, length))


def stack_rows(selections: list[Selection], starts: list[int]) -> Selection:
    """One selection for a batch from one of each row, shifted by the row's left padding and padded with -1.

    Slots attended `apart` differ by row and are attended with the others.
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
        blend=_stack_blends([s.blend for s in selections]),
    )


def stack_positions(parts: list[Tensor], starts: list[int]) -> Tensor:
    """Positions [B, R, S] of a batch from those of each row, shifted by the row's left padding and padded with -1."""
    shifted = [torch.where(part < 0, -1, part + start) for part, start in zip(parts, starts, strict=True)]
    slots = max(part.shape[-1] for part in shifted)
    return torch.cat([pad(part, (0, slots - part.shape[-1]), value=-1) for part in shifted])


def _stack(parts: list[Tensor | None], fill: float) -> Tensor | None:
    """Rows [B, R, S] of all parts, padded to the widest; None where one of them is missing."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    slots = max(part.shape[-1] for part in known)
    return torch.cat([pad(part, (0, slots - part.shape[-1]), value=fill) for part in known])


def _stack_blends(parts: list[Blend | None]) -> Blend | None:
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    none = Blend(torch.zeros_like(like.values), torch.zeros_like(like.share))
    every = [part or none for part in parts]
    return Blend(torch.cat([part.values for part in every]), torch.cat([part.share for part in every]))
