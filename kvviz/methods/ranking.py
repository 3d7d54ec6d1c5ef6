"""Ranking: how one step of a method ranked its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Ranking:
    """How one step ranked the N tokens so far. All tensors [B, R, N].

    `scores` float: what the method ranked each token by, its own score or that of its group; -inf if the method could
    not find it, NaN if it was not to be ranked (sinks, recent window). `exact` float: the same score with nothing
    approximated, for the method's own groups. `alone` float: the score of the token alone, with nothing approximated.
    `groups` int64: the token's group, -1 for none; None if tokens are ranked one by one.
    """

    scores: Tensor
    exact: Tensor
    alone: Tensor
    groups: Tensor | None = None

    def of(self, row: int) -> Ranking:
        """The ranking of one sequence of the batch, as a batch of one."""
        groups = None if self.groups is None else self.groups[row, None]
        return Ranking(self.scores[row, None], self.exact[row, None], self.alone[row, None], groups)


def spread(of_groups: Tensor, groups: Tensor) -> Tensor:
    """The value of each token's group [B, R, N], from one per group [B, R, C]; NaN for group -1."""
    return of_groups.gather(-1, groups.clamp(min=0)).masked_fill(groups < 0, torch.nan)
