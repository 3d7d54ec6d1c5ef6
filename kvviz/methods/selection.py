"""Selection, and the step from scores to token positions under a budget."""

from __future__ import annotations

import warnings
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
    "positions",
    "reduce_group",
    "stack_positions",
    "stack_rows",
    "surround",
    "take_groups",
    "take_tokens",
    "to_selection_heads",
]


@dataclass(frozen=True)
class ValueCorrection:
    """A part of the output that no attended token gives: output = (1 − share) · attended + share · values.

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
    to the tokens' logits. `value_correction` mixes a fixed vector into the output. `host_part` are the slots (start,
    stop) whose partial attention is computed where those tokens are kept and merged by log-sum-exp: the result is the
    same.
    """

    indices: Tensor
    groups: Tensor | None = None
    scores: Tensor | None = None
    merged: Merged | None = None
    padded: bool = False
    bias: Tensor | None = None
    value_correction: ValueCorrection | None = None
    host_part: tuple[int, int] | None = None


def to_selection_heads(tensor: Tensor, heads: int) -> Tensor:
    """A tensor [B, H, ...] of KV heads for each selection head: itself, or repeated for query heads [B, Q, ...]."""
    kv_heads = tensor.shape[1]
    return tensor if heads == kv_heads else tensor.repeat_interleave(heads // kv_heads, dim=1)


def take_tokens(scores: Tensor, budget: int, *, start: int = 0, details: bool = False) -> Selection:
    """The `budget` best tokens of scores [B, R, L], none NaN: positions ascending, ties to the earlier token.

    The first score is that of position `start`.
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
    """Tokens of the best groups, whole ones first and the last one trimmed, until the budget is met.

    scores [B, R, C] rank the groups; sizes [B, H, C], offsets [B, H, C+1] and order [B, H, L] say which tokens each
    holds (order lists positions group by group), R a multiple of H. Every row gives min(budget, L) positions,
    ascending. Source: ClusterKV (arXiv 2412.03213), section IV-C: sort, gather sizes, prefix sum, trim.
    """
    return Selection(*take_clusters(scores, sizes, offsets, order, budget, details=details))


@lru_cache(maxsize=64)
def positions(start: int, stop: int, batch: int, heads: int, device: torch.device) -> Tensor:
    """start to stop - 1 for every head, [B, R, stop - start]; shared, so not to be written to.

    Every layer of a step asks for the same few: keeping them saves seven small operations a layer.
    """
    return torch.arange(start, stop, device=device).expand(batch, heads, -1).contiguous()


def add_sinks_and_recent(selection: Selection, sinks: int = 0, recent: tuple[int, int] = (0, 0)) -> Selection:
    """The selection with the first `sinks` positions and the range `recent` added, as tokens that were not ranked.

    Pads of the selection stay where they are, in the middle.
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


def surround(selection: Selection, *, before: int = 0, after: tuple[int, int] = (0, 0)) -> Selection:
    """`add_sinks_and_recent` by its old name, for methods that were written with it."""
    warnings.warn("surround is called add_sinks_and_recent now", DeprecationWarning, stacklevel=2)
    return add_sinks_and_recent(selection, before, after)


def stack_rows(selections: list[Selection], starts: list[int]) -> Selection:
    """One selection for a batch from one of each row, shifted by the row's left padding and padded with -1.

    The host part differs by row: its slots are attended with the others.
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


def _stack_corrections(parts: list[ValueCorrection | None]) -> ValueCorrection | None:
    like = next((part for part in parts if part is not None), None)
    if like is None:
        return None
    none = ValueCorrection(torch.zeros_like(like.values), torch.zeros_like(like.share))
    every = [part or none for part in parts]
    return ValueCorrection(torch.cat([part.values for part in every]), torch.cat([part.share for part in every]))
