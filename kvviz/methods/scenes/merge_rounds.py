"""Rounds of CentroidKV's merging, one by one, by the functions that the method uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kvviz_kernels import soft_match
from kvviz_kernels.matching import link_sources
from numpy.typing import NDArray

from ...clustering.merged import Merged, no_centroids, with_tokens
from ..centroidkv import CentroidKV
from .moment import Moment

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Round:
    """A round of merging: its links, and the centroids after it.

    `sources` and `partners` [M] are the linked tokens or centroids of A and of B, by their number before the round,
    with their `cosines`; the links that are `kept` merge. `members` [J] is the centroid of each token after the round,
    and `degree` [C] how many each stands for. `holders` [C] is the token, counted from the first that merges, whose
    place a centroid has.
    """

    number: int  # from 1
    ratio: float
    sources: Numbers
    partners: Numbers
    cosines: NDArray[np.float32]
    kept: NDArray[np.bool_]
    members: Numbers
    degree: Numbers
    holders: Numbers


def first_rounds(method: CentroidKV, moment: Moment) -> list[Round]:
    """The rounds of the first merge, which is that of the prompt unless the prompt was within the budget."""
    merge = moment.state.merges[0]
    first = method.sinks
    keys, values = (tensor[:, :, first : first + merge.joined] for tensor in (moment.keys, moment.values))
    before = with_tokens(no_centroids(keys, values, members=True), keys, values)
    holders, rounds = np.arange(merge.joined), []
    for number, (ratio, after) in enumerate(method.rounds_of(merge, before), start=1):
        made = _round(method, number, ratio, before, after, holders)
        rounds.append(made)
        before, holders = after, made.holders
    return rounds


def _round(
    method: CentroidKV, number: int, ratio: float, before: Merged, after: Merged, holders: Numbers
) -> Round:  # fmt: skip
    old, new = _members(before), _members(after)
    became = np.zeros(len(holders), np.int64)  # the centroid after the round, of each one before it
    became[old] = new
    partners, cosines = (tensor[0, 0].numpy() for tensor in soft_match(before.keys, method.chunk_size))
    sources = link_sources(len(holders), method.chunk_size, before.keys.device).numpy()
    kept = became[sources] == became[partners]
    remaining = np.setdiff1d(np.arange(len(holders)), sources[kept])
    degree = after.degree[0, 0].numpy().astype(np.int64)
    return Round(number, ratio, sources, partners, cosines, kept, new, degree, holders[remaining])


def _members(merged: Merged) -> Numbers:
    assert merged.members is not None
    return np.asarray(merged.members[0, 0].numpy(), np.int64)
