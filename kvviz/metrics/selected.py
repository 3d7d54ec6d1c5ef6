"""Quality of a selection: recall, attention mass, output error, and the groups that it recalled."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError

Array = NDArray[Any]

COLUMN = 8  # values of which one is looked at first, where the largest of many are wanted


def member_mask(indices: Array, length: int) -> NDArray[np.bool_]:
    """Boolean mask [..., length] of the positions in `indices` [..., S]; -1 (padding) is ignored.

    Raises InvalidInputError for positions at or beyond `length`.
    """
    indices = np.asarray(indices)
    if indices.max(initial=-1) >= length:
        raise InvalidInputError("positions", int(indices.max()), f"at most {length - 1}, the last token")
    mask = np.zeros((*indices.shape[:-1], length + 1), dtype=bool)  # the last column takes the padding
    np.put_along_axis(mask, np.where(indices < 0, length, indices), True, axis=-1)
    return mask[..., :length]


def recall(selected: Array, true: Array, merged: Array | None = None) -> NDArray[np.float64]:
    """Share of the true tokens that were selected, [...] in 0..1.

    `selected` [..., S] and `true` [..., B] hold positions, padded with -1. If `true` is empty, the recall is 1. With
    `merged` [..., L], the `merged_share` of each token, a true token in a centroid counts by its share.
    Source: ClusterKV (arXiv 2412.03213), section V-B, |I ∩ I_true| / |I_true|.
    """
    selected, true = np.asarray(selected), np.asarray(true)
    length = int(max(selected.max(initial=-1), true.max(initial=-1))) + 1 if merged is None else merged.shape[-1]
    true_mask = member_mask(true, length)
    hits = (_recalled_share(selected, length, merged) * true_mask).sum(-1)
    count = true_mask.sum(-1)
    return np.where(count > 0, hits / np.maximum(count, 1), 1.0)


def attention_mass(weights: Array, selected: Array, merged: Array | None = None) -> NDArray[np.float64]:
    """Sum of the exact attention weights on the selected tokens, [...] in 0..1.

    `weights` [..., L] are softmax weights over all tokens; `selected` [..., S] holds positions, padded with -1. With
    `merged` [..., L], the `merged_share` of each token, a token in a centroid adds its effective weight: that share of
    its exact weight. If every token is selected or in a centroid, the sum is 1 minus the total variation distance
    between the exact attention and the method's: selected tokens get at least their exact weights, because a mean key
    never gives a centroid more weight than its tokens have together (Jensen's inequality, without soft-capping).
    """
    weights = np.asarray(weights, dtype=np.float64)
    return np.asarray((weights * _recalled_share(selected, weights.shape[-1], merged)).sum(-1), np.float64)


def merged_share(weights: Array, centroid_weights: Array, members: Array) -> NDArray[np.float64]:
    """Share of each merged token's exact weight that its centroid gives it, [..., L] in 0..1; 0 for other tokens.

    A centroid of m tokens and weight w gives each of them w / m. A token's effective weight is the smaller of that and
    its exact weight, so that no token is recalled by more than it weighs. The share is the effective weight over the
    exact one, each summed over the G query heads. The token of a centroid of its own has share 1; the best token of a
    large centroid has a small one. A token of weight 0 has share 1.

    `weights` [..., G, L] are exact softmax weights, `centroid_weights` [..., G, C] the weights of the centroids in the
    step's attention. `members` [..., L] is the centroid of each token, -1 for none.

    >>> merged_share([[0.5, 0.3, 0.1, 0.1]], [[0.4]], [-1, 0, 0, -1]).round(3).tolist()
    [0.0, 0.667, 1.0, 0.0]
    """
    weights, centroid_weights = (np.asarray(array, np.float64) for array in (weights, centroid_weights))
    members = np.asarray(members)
    joined, centroid = members >= 0, np.maximum(members, 0)
    degree = np.zeros((*members.shape[:-1], centroid_weights.shape[-1]))
    np.add.at(degree, (*np.indices(members.shape)[:-1], centroid), joined)
    per_token = centroid_weights / np.maximum(degree, 1)[..., None, :]  # [..., G, C]
    given = np.take_along_axis(per_token, centroid[..., None, :], axis=-1)  # [..., G, L]
    effective, exact = np.minimum(weights, given).sum(-2), weights.sum(-2)
    return np.asarray(np.divide(effective, exact, out=np.ones_like(exact), where=exact > 0) * joined, np.float64)


def _recalled_share(selected: Array, length: int, merged: Array | None) -> NDArray[Any]:
    """1 for selected tokens, otherwise the merged share, [..., length]."""
    chosen = member_mask(selected, length)
    return chosen if merged is None else np.where(chosen, 1.0, merged)


def output_error(output: Array, exact: Array) -> NDArray[np.float64]:
    """Relative error of the attention output, ‖output − exact‖ / ‖exact‖ over the last axis, [...].

    If the exact output is zero, the error is 0 for a zero output and infinite otherwise.
    """
    output, exact = np.asarray(output, dtype=np.float64), np.asarray(exact, dtype=np.float64)
    norm, distance = np.linalg.norm(exact, axis=-1), np.linalg.norm(output - exact, axis=-1)
    undefined = np.where(distance > 0, np.inf, 0.0)
    return np.asarray(np.divide(distance, norm, out=undefined, where=norm > 0), np.float64)


def top_tokens(weights: Array, count: int) -> NDArray[np.int64]:
    """Positions of the `count` largest weights, ascending, [..., min(count, L)]; ties go to the earlier token.

    `weights` [..., L]. This is the oracle's selection: no other set of that size has more attention mass. Raises
    InvalidInputError for a negative count.
    """
    if count < 0:
        raise InvalidInputError("top_tokens: count", count, "0 or more")
    return np.sort(ranked_tokens(weights, count), axis=-1)


def ranked_tokens(weights: Array, count: int) -> NDArray[np.int64]:
    """Positions of the `count` largest weights, the largest first, [..., min(count, L)]; ties: the earlier token first.

    `weights` [..., L]. Only weights that can be among the largest are sorted.
    """
    weights = np.asarray(weights)
    weights = weights if weights.dtype.kind == "f" else weights.astype(np.float64)
    *rows, length = weights.shape
    count = min(count, length)
    ranked = np.empty((math.prod(rows), count), np.int64)
    for row, negated in zip(ranked, -weights.reshape(-1, length), strict=True):
        candidates = _possible(negated, count)
        if 0 < count < len(candidates):
            few = negated[candidates]
            candidates = candidates[~(few > np.partition(few, count - 1)[count - 1])]  # keeps NaN, which sorts last
        row[:] = candidates[np.argsort(negated[candidates], kind="stable")[:count]]
    return ranked.reshape(*rows, count)


def _possible(values: Array, count: int) -> NDArray[np.int64]:
    """Ascending positions that include those of the `count` smallest values: the smallest of each column tell a bound.

    Of a long row few are left, so that sorting a part of them is far faster than of the whole row.
    """
    columns = len(values) // COLUMN
    if not 0 < count <= columns:
        return np.arange(len(values))
    least = np.fmin.reduce(values[: columns * COLUMN].reshape(COLUMN, columns))
    return np.flatnonzero(~(values > np.partition(least, count - 1)[count - 1]))


def pool_argmax(values: Array, columns: int) -> NDArray[np.int64]:
    """Position of the largest value in each of `columns` nearly equal ranges of positions, [..., min(columns, L)].

    `values` [..., L]. Max pooling keeps single spikes that a mean would hide. Ties go to the earlier position.
    """
    values = np.asarray(values)
    starts, inside = _runs(values.shape[-1], columns)
    return np.asarray(starts + values[..., inside].argmax(-1), np.int64)


@lru_cache(16)
def _runs(length: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First position of each range, and all its positions [columns, width]; a shorter range repeats its last one."""
    edges = np.linspace(0, length, min(columns, length) + 1).astype(np.int64)
    starts, widths = edges[:-1], np.diff(edges)
    return starts, starts[:, None] + np.minimum(np.arange(widths.max(initial=1)), widths[:, None] - 1)


def rank_groups(
    groups: Array, scores: Array, weights: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Ids [K], attended tokens [K], scores [K] and attention mass [K] of the recalled clusters, best score first.

    `groups`, `scores` and `weights` [S] belong to the attended tokens of one head; group -1 (not recalled) is left out.
    A cluster's score is that of its best token. A cluster without a score has NaN and comes last. Ties go to the lower
    id.
    """
    groups = np.asarray(groups)
    chosen = groups >= 0
    ids, member, counts = np.unique(groups[chosen], return_inverse=True, return_counts=True)
    best = np.full(len(ids), -np.inf)
    np.fmax.at(best, member, np.asarray(scores, dtype=np.float64)[chosen])
    best[np.isneginf(best)] = np.nan
    masses = np.zeros(len(ids))
    np.add.at(masses, member, np.asarray(weights, dtype=np.float64)[chosen])
    order = np.lexsort((ids, -best))  # NaN sorts last
    return ids[order].astype(np.int64), counts[order].astype(np.int64), best[order], masses[order].astype(np.float64)


def group_members(indices: Array, groups: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Groups [M] and positions [M] of all distinct pairs of a recalled cluster and a token recalled with it.

    `indices` and `groups` [..., S]. Over all steps of a recording, these are the members of the clusters that are
    known; a cluster may have more.
    """
    indices, groups = np.asarray(indices), np.asarray(groups)
    known = (groups >= 0) & (indices >= 0)
    length = int(indices.max(initial=-1)) + 1
    pairs = np.unique(groups[known].astype(np.int64) * length + indices[known])  # far faster than axis=1
    return pairs // max(length, 1), pairs % max(length, 1)
