"""Ranking: how one step of a method ranked its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


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


def of_tokens(scores: Tensor, exact: Tensor, start: int) -> Ranking:
    """The ranking of single tokens by scores [B, R, n] from position `start` on, the others not; `exact` [B, R, N]."""
    after = exact.shape[-1] - start - scores.shape[-1]
    return Ranking(pad(scores.float(), (start, after), value=torch.nan), exact, exact)


def of_candidates(candidates: Tensor, scores: Tensor, exact: Tensor, alone: Tensor, middle: slice) -> Ranking:
    """The ranking of single tokens, of which only the `candidates` [B, R, U] were found, with scores [B, R, U].

    The other tokens of `middle` get -inf, those outside it were not to be ranked. Pads are -1; `exact`, `alone`
    [B, R, N].
    """
    length = alone.shape[-1]
    told = alone.new_full((*alone.shape[:2], length + 1), -torch.inf)  # the last place is for pads
    told.scatter_(-1, torch.where(candidates < 0, length, candidates), scores.float())
    told[..., : middle.start], told[..., middle.stop :] = torch.nan, torch.nan
    return Ranking(told[..., :-1], exact, alone)


def of_groups(scores: Tensor, alone: Tensor, groups: Tensor) -> Ranking:
    """The ranking of exact groups, by scores [B, R, C]; `alone` [B, R, N] and `groups` [B, R, N] of each token."""
    told = spread(scores.float(), groups)
    return Ranking(told, told, alone, groups)


def spread(values: Tensor, groups: Tensor) -> Tensor:
    """The value of each token's group [B, R, N], from one per group [B, R, C]; NaN for group -1."""
    with_none = pad(values, (0, 1), value=torch.nan)  # there may be no group at all
    return with_none.gather(-1, torch.where(groups < 0, values.shape[-1], groups))


def cluster_of_token(order: Tensor, offsets: Tensor, length: int) -> Tensor:
    """The cluster of each of `length` tokens [B, H, L], -1 for none, from the clusters' `order` and `offsets`.

    order [B, H, n] are positions sorted by cluster, offsets [B, H, C+1] where each cluster starts in it.
    """
    slots = torch.arange(order.shape[-1], device=order.device).expand_as(order).contiguous()
    cluster = torch.searchsorted(offsets[..., 1:].contiguous(), slots, right=True)  # of each slot
    groups = torch.full((*order.shape[:2], length), -1, device=order.device)
    return groups.scatter_(-1, order, cluster)
