"""KeyGroups: the groups of one head's keys that a method makes, with the score and the recalled tokens of each step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

NEAREST = 5  # nearest groups listed per group
PAIRS = 4_000_000  # cosines between centroids in memory at a time


@dataclass(frozen=True, eq=False)
class KeyGroups:
    """The groups of one KV head's prompt keys: C groups, P prompt tokens, T steps, S of them ranked, K nearest groups.

    A group is a cluster of ClusterKV, a page of Quest, a code of PQCache in one part of the key, or the list of a query
    centroid of CTkvr. Only lists share tokens. `scores`, `recalled` and `cut` are those of this method, at the first
    steps whose queries the trace holds; `taken` counts the tokens attended to, by the method of a recording if one
    gives the steps.
    """

    labels: NDArray[np.int32] = field(repr=False)  # [P] group of each token, -1 for none; of several, the first
    centroids: NDArray[np.float32] = field(repr=False)  # [C, D], D that of the part for codes
    sizes: NDArray[np.int32]  # [C] tokens of each group
    spread: NDArray[np.float32] = field(repr=False)  # [C] mean cosine of a group's keys to its centroid, NaN if empty
    central: NDArray[np.int32] = field(repr=False)  # [C] the token whose key has the largest such cosine, -1 if empty
    nearest: NDArray[np.int32] = field(repr=False)  # [C, K] other groups by cosine of the centroids, -1 pads
    nearest_cosine: NDArray[np.float32] = field(repr=False)  # [C, K] those cosines, NaN pads
    order: NDArray[np.int32] = field(repr=False)  # [n] tokens by group, the nearest to the centroid first
    offsets: NDArray[np.int32] = field(repr=False)  # [C+1] where each group starts in `order`
    taken: NDArray[np.int32] = field(repr=False)  # [T, C] tokens of each group that each step attended to
    scores: NDArray[np.float32] = field(repr=False)  # [S, C] what each step ranks the groups by, NaN: not ranked
    recalled: NDArray[np.int32] = field(repr=False)  # [S, C] tokens of each group that the method attends to
    cut: NDArray[np.int32] = field(repr=False)  # [S] groups before the cut, best score first; -1: groups have no cut

    def members(self, group: int) -> NDArray[np.int64]:
        """The positions of a group's tokens, int64, ascending."""
        return np.sort(self.order[self.offsets[group] : self.offsets[group + 1]]).astype(np.int64)

    def contains(self, group: int, token: int) -> bool:
        """Whether a token is in a group; a group or token of -1 is in none."""
        return group >= 0 and token in self.order[self.offsets[group] : self.offsets[group + 1]]


@dataclass(frozen=True, eq=False)
class Membership:
    """The tokens of C groups: parallel arrays of tokens and their groups, int64 [n]."""

    tokens: NDArray[np.int64]
    groups: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, groups: Iterable[NDArray[Any]], prompt: int) -> Membership:
        """The membership of groups given by their positions, of which those in the prompt count."""
        lists = [np.asarray(positions)[np.asarray(positions) < prompt] for positions in groups]
        numbers = np.repeat(np.arange(len(lists)), [len(positions) for positions in lists])
        tokens = np.concatenate([*lists, np.zeros(0, np.int64)]).astype(np.int64)
        return cls(tokens, numbers, len(lists))

    def counts(self, attended: Iterable[NDArray[np.int64]], prompt: int) -> NDArray[np.int32]:
        """Tokens of each group among the positions of each step, int32 [T, C]."""
        rows = []
        for positions in attended:
            chosen = np.zeros(prompt, bool)
            chosen[positions[positions < prompt]] = True
            rows.append(np.bincount(self.groups[chosen[self.tokens]], minlength=self.count))
        return np.asarray(rows, np.int32).reshape(len(rows), self.count)


def grouped(
    membership: Membership, keys: NDArray[Any], centroids: NDArray[np.float32], labels: NDArray[np.int32],
    **steps: NDArray[Any],
) -> KeyGroups:  # fmt: skip
    """The KeyGroups of these members, with what is known of the `steps`; keys [P, D], centroids [C, D]."""
    tokens, groups, count = membership.tokens, membership.groups, membership.count
    cosine = (_unit(keys[tokens]) * _unit(centroids)[groups]).sum(-1)
    sizes = np.bincount(groups, minlength=count)
    mean = np.full(count, np.nan, np.float32)
    np.divide(np.bincount(groups, cosine, minlength=count), sizes, out=mean, where=sizes > 0, casting="unsafe")
    order = tokens[np.lexsort((tokens, -cosine, groups))].astype(np.int32)  # equal cosines: the first token first
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    central = np.full(count, -1, np.int32)
    central[sizes > 0] = order[offsets[:-1][sizes > 0]]
    return KeyGroups(
        labels, centroids, sizes.astype(np.int32), mean, central, *_nearest(centroids, sizes), order, offsets, **steps
    )


def _nearest(centroids: NDArray[np.float32], sizes: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The nearest other groups, by the cosine of the centroids and not empty [C, K], and their cosines [C, K]."""
    unit, count = _unit(centroids), len(centroids)
    k, block = max(min(NEAREST, count - 1), 0), max(1, PAIRS // max(count, 1))
    empty = np.flatnonzero(sizes == 0)
    nearest, values = np.zeros((count, k), np.int32), np.zeros((count, k), np.float32)
    for start in range(0, count, block):
        cosine = unit[start : start + block] @ unit.T
        cosine[:, empty] = -np.inf
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -np.inf
        nearest[rows + start] = np.argsort(-cosine, axis=-1, kind="stable")[:, :k]
        values[rows + start] = np.take_along_axis(cosine, nearest[rows + start], -1)
    valid = np.isfinite(values)
    return np.where(valid, nearest, -1).astype(np.int32), np.where(valid, values, np.nan).astype(np.float32)


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    floats = vectors.astype(np.float32)
    return cast(NDArray[np.float32], floats / np.maximum(np.linalg.norm(floats, axis=-1, keepdims=True), 1e-30))
