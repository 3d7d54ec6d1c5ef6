"""Stages of a selection: how a step ranked its tokens, and what each stage made exact would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..trace.outcomes import VERDICTS
from .ranking import Ranking
from .selection import Selection, member_mask, reduce_group

if TYPE_CHECKING:
    from .base import Method
    from .state import State


@dataclass(frozen=True)
class StepStages:
    """One step of one layer as a diagnosis sees it, for one sequence. All tensors [R, N].

    `attended`, `kept` bool; `weights` float: exact attention weights, averaged over the group unless the method chooses
    per query head; `entries` int64 [R]: what each row attended to, centroids included.
    """

    ranking: Ranking
    attended: Tensor
    kept: Tensor
    weights: Tensor
    entries: Tensor

    @property
    def ranked(self) -> Tensor:
        """Whether the method could have chosen each token by its score: bool [R, N]."""
        return self.kept & ~self.ranking.scores[0].isnan()

    def exact_at(self, stage: str, *, trim: bool = True) -> Tensor:
        """The tokens that the step attends to, bool [R, N], if this stage is exact and all others are the method's.

        "kept": nothing was evicted or merged, and single tokens are taken by their exact scores. "grouping": single
        tokens are taken by their exact scores, among those kept. "ranking": the method's groups by exact scores.
        "trimming": the last group is not cut. With trim=False it is not cut by exact scores of groups either.
        """
        ranking, ranked = self.ranking, self.ranked
        counts = (self.attended & ranked).sum(-1)
        staying = self.attended & ~ranked
        if stage == "trimming":
            taken = take(ranking.scores[0], ranked, counts, _first(ranking.groups), trim=False)
        elif stage == "ranking":
            taken = take(ranking.exact[0], ranked, counts, _first(ranking.groups), trim=trim)
        elif stage == "grouping":
            taken = take(ranking.alone[0], ranked, counts)
        else:
            best = self._best(self.entries, torch.ones_like(self.kept))
            return best
        return taken | staying

    def outcome(self, positions: list[int]) -> NDArray[np.object_]:
        """Where each token at `positions` was lost, one of OUTCOMES, [R, P].

        A token is wanted if it is among the tokens with the largest exact weights, as many as the row attended to.
        "crowded out": it is not among the best of those that were ranked, for which sinks, window and centroids left
        room. Otherwise the first of trimming, ranking, grouping that finds it when it is exact is to blame.
        """
        everything = torch.ones_like(self.kept)
        counts = (self.attended & self.ranked).sum(-1)
        rules: list[tuple[Tensor, str]] = [
            (self.attended, "attended"),
            (~self._best(self.entries, everything), "not wanted"),
            (~self.kept, VERDICTS["kept"]),
            (~self._best(counts, self.ranked), "crowded out"),
        ]
        if self.ranking.groups is not None:
            rules.append((self.exact_at("trimming"), VERDICTS["trimming"]))
        rules.append((self.exact_at("ranking"), VERDICTS["ranking"]))
        rules.append((self.exact_at("grouping"), VERDICTS["grouping"]))
        rules.append((everything, VERDICTS["ranking"]))  # the group's reduction ranks it lower than its mean weight
        found = np.full((len(self.kept), len(positions)), "", dtype=object)
        for holds, name in rules:
            here = holds[:, positions].cpu().numpy() & (found == "")
            found[here] = name
        return found

    def ranks(self, positions: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Score, rank (1 is the best) and the lowest score attended to, each [R, P]; NaN for what was not ranked."""
        scores = torch.where(self.ranked, self.ranking.scores[0].double(), torch.nan)
        of_tokens = scores[:, positions]
        higher = (scores[:, None] > of_tokens[..., None]).sum(-1) + 1.0
        cut = torch.where(self.attended & self.ranked, scores, torch.inf).amin(-1, keepdim=True)
        cut = torch.where(cut.isinf(), torch.nan, cut).expand_as(of_tokens)
        rank = torch.where(of_tokens.isnan(), torch.nan, higher)
        return of_tokens.cpu().numpy(), rank.cpu().numpy(), cut.cpu().numpy()

    def exact_ranks(self, positions: list[int]) -> NDArray[np.int64]:
        """Rank (1 is the best) by exact weight among all tokens, [R, P]."""
        higher: Tensor = (self.weights[:, None] > self.weights[:, positions, None]).sum(-1) + 1
        return higher.cpu().numpy()

    def group_ranks(self, positions: list[int]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Each token's group, int64 [R, P], its rank, and the rank of the last group that was attended to.

        Float64 [R, P], 1 is the best. The group is -1 and the ranks are NaN for what has no group or was not ranked.
        """
        shape = (len(self.kept), len(positions))
        if self.ranking.groups is None:
            return np.full(shape, -1), np.full(shape, np.nan), np.full(shape, np.nan)
        groups = self.ranking.groups[0].masked_fill(~self.ranked, -1)
        scores = torch.where(groups < 0, -torch.inf, self.ranking.scores[0].double())
        count = int(groups.max()) + 2  # the last place is for tokens without a group
        places = torch.where(groups < 0, count - 1, groups)
        of_group = scores.new_full((shape[0], count), -torch.inf).scatter_reduce_(-1, places, scores, "amax")
        of_token = ((of_group[:, None] > of_group[..., None]).sum(-1) + 1.0).gather(-1, places)
        cut = of_token.masked_fill(~self.attended | (groups < 0), 0.0).amax(-1, keepdim=True).expand_as(of_token)
        unknown = groups < 0
        group, rank, last = (
            values[:, positions].cpu().numpy()
            for values in (groups, of_token.masked_fill(unknown, torch.nan), cut.masked_fill(unknown, torch.nan))
        )
        return group, rank, last

    def _best(self, counts: Tensor, among: Tensor) -> Tensor:
        return take(self.weights, among, counts)


def step_stages(
    method: Method, state: State, queries: Tensor, keys: Tensor, selection: Selection, weights: Tensor
) -> list[StepStages]:
    """What a diagnosis needs to know of one step of one layer, for each sequence of the batch.

    queries [B, Q, D], keys [B, H, N, D] of all tokens, and their exact `weights` [B, Q, N]. A method that does not tell
    its ranking (`Method.ranking`) counts as one that ranks single tokens by a score known of the attended ones only.
    """
    batch, rows, _ = selection.indices.shape
    length = weights.shape[-1]
    attended = member_mask(selection.indices, length)
    exact = reduce_group(weights, rows, "mean")  # [B, R, N]
    ranking = method.ranking(state, queries, keys)
    if ranking is None:
        assert selection.scores is not None  # the layer's context asks for details
        slots = torch.where(selection.indices < 0, length, selection.indices)
        scores = exact.new_full((batch, rows, length + 1), -torch.inf)
        ranking = Ranking(scores.scatter_(-1, slots, selection.scores.float())[..., :-1], exact, exact)
    kept = torch.ones_like(attended)
    keeps = method.keeps(state) if method.drops_tokens else None
    if keeps is not None:
        kept = member_mask(keeps, length).repeat_interleave(rows // keeps.shape[1], dim=1) | attended
    entries = selection.entries
    return [StepStages(ranking.of(row), attended[row], kept[row], exact[row], entries[row]) for row in range(batch)]


def take(scores: Tensor, among: Tensor, counts: Tensor, groups: Tensor | None = None, *, trim: bool = True) -> Tensor:
    """The tokens of the best scores, bool [R, N], `counts` [R] in each row, of those in `among` bool [R, N].

    With `groups` int64 [R, N], whole groups are taken, the best first; the last one is cut to its first tokens, or with
    trim=False taken whole. Ties go to the lower group, then to the earlier token.
    """
    order = torch.arange(scores.shape[-1], device=scores.device).expand_as(scores)
    if groups is not None:
        order = groups.argsort(dim=-1, stable=True)
    keys = torch.where(among, scores.double(), -torch.inf).nan_to_num(
        nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf
    )
    by_score = keys.gather(-1, order).argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, by_score)
    order = order.gather(-1, (~among.gather(-1, order)).to(torch.uint8).argsort(dim=-1, stable=True))
    first = torch.arange(order.shape[-1], device=order.device) < counts[:, None]
    taken = torch.zeros_like(among).scatter_(-1, order, first) & among
    if trim or groups is None:
        return taken
    last = order.gather(-1, (counts[:, None] - 1).clamp(min=0))
    whole = (groups == groups.gather(-1, last)) & among & (counts > 0)[:, None]
    return taken | whole


def _first(groups: Tensor | None) -> Tensor | None:
    return None if groups is None else groups[0]
