"""Similarity of a head's vectors: between positions, by distance, and in the top keys of pairs of queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .selected import recall, top_tokens

Array = NDArray[Any]
_DISTANCES = 48  # by default, equally spaced on a logarithmic axis


class DistanceCurve(NamedTuple):
    """Cosine similarity of all pairs of tokens at each distance: the mean and two quantiles."""

    distances: NDArray[np.int64]  # [K] tokens
    mean: NDArray[np.float64]  # [..., K]
    low: NDArray[np.float64]  # [..., K]
    high: NDArray[np.float64]  # [..., K]


class QueryPairs(NamedTuple):
    """P pairs of queries, each of one head: their cosine similarity and the overlap of their top-k keys."""

    head: NDArray[np.int64]  # [P] query head
    first: NDArray[np.int64]  # [P] position of the earlier query
    second: NDArray[np.int64]  # [P] position of the later query
    cosine: NDArray[np.float64]  # [P] in −1..1
    overlap: NDArray[np.float64]  # [P] in 0..1


def similarity_map(vectors: Array, size: int = 256) -> NDArray[np.float32]:
    """Mean cosine similarity of every two blocks of tokens, float32 [..., n, n] with n = min(size, L).

    `vectors` [..., L, D]. The sequence is cut into n nearly equal blocks; if L <= size, each block is one token. The
    mean cosine of two blocks is the product of their mean unit vectors: this is exact and needs no [L, L] array. The
    diagonal includes each token's cosine of 1 with itself. The cosine with a zero vector is 0.

    Raises InvalidInputError for no token, values that are not finite, or a size below 1.
    Source: CentroidKV fig. 2, which shows single tokens; the blocks are for long sequences.
    """
    if size < 1:
        raise InvalidInputError("similarity_map: size", size, "at least 1")
    units = _units("similarity_map", vectors, 1)
    length = units.shape[-2]
    edges = np.linspace(0, length, min(size, length) + 1).astype(np.int64)
    blocks = np.add.reduceat(units, edges[:-1], axis=-2) / np.diff(edges)[:, None].astype(np.float32)  # [..., n, D]
    return np.asarray(blocks @ np.swapaxes(blocks, -1, -2), np.float32)


def log_distances(length: int) -> NDArray[np.int64]:
    """Up to 48 distances from 1 to half of `length`, ascending, nearly equally spaced on a logarithmic axis.

    Larger distances have few pairs.
    """
    return np.unique(np.geomspace(1, max(length // 2, 1), _DISTANCES).round().astype(np.int64))


def similarity_by_distance(
    vectors: Array, distances: Array | None = None, quantiles: tuple[float, float] = (0.1, 0.9)
) -> DistanceCurve:
    """Mean and quantiles of the cosine similarity of all pairs of tokens at each distance, [..., K].

    `vectors` [..., L, D]; `distances` int [K], in tokens, each from 1 to L − 1; the default is `log_distances(L)`. All
    L − d pairs at a distance d count. The cosine with a zero vector is 0.

    Raises InvalidInputError for fewer than 2 tokens, values that are not finite, distances that are not whole numbers
    in that range, or quantiles that are not 0 <= low <= high <= 1.

    Source: CentroidKV fig. 3 (keys) and CTkvr fig. 2a (queries). CentroidKV samples tokens and compares each with the
    256 tokens around it; here all pairs count.
    """
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise InvalidInputError("similarity_by_distance: quantiles", quantiles, "0 <= low <= high <= 1")
    units = _units("similarity_by_distance", vectors, 2)
    length = units.shape[-2]
    chosen = log_distances(length) if distances is None else np.asarray(distances)
    whole = chosen.ndim == 1 and np.issubdtype(chosen.dtype, np.integer)
    if not whole or not len(chosen) or chosen.min() < 1 or chosen.max() >= length:
        raise InvalidInputError(
            "similarity_by_distance: distances", chosen, f"whole numbers [K] from 1 to {length - 1}"
        )
    curves = np.empty((3, *units.shape[:-2], len(chosen)))
    for column, distance in enumerate(chosen.tolist()):
        cosines = np.einsum("...ld,...ld->...l", units[..., :-distance, :], units[..., distance:, :])
        curves[0, ..., column] = cosines.mean(-1, dtype=np.float64)
        curves[1:, ..., column] = np.quantile(cosines, quantiles, axis=-1)
    return DistanceCurve(chosen.astype(np.int64), *curves)


def topk_overlap(queries: Array, keys: Array, k: int, pairs: int = 1024, seed: int = 0) -> QueryPairs:
    """Cosine similarity and top-k overlap of `pairs` random pairs of queries.

    `queries` [Q, L, D] and `keys` [H, L, D]; Q / H query heads share a KV head. A pair has one random query head and
    two positions in the second half of the sequence. Their distance is log-uniform from 1 to L / 2, so that near and
    far pairs both occur; then the position is drawn. Only keys that both queries attend to count, those up to the
    earlier query. Overlap is the share of one query's k keys with the largest dot products that are also among the
    other query's; unrelated queries would share k / (number of keys). The same seed gives the same pairs.

    Raises InvalidInputError for shapes that do not match, fewer than 4 tokens, values that are not finite, `pairs`
    below 1, or `k` outside 1 to half the tokens.

    Source: CTkvr fig. 2b, |S ∩ S'| / |S| by q·k. Deviations: the paper draws pairs uniformly over positions and uses
    k = 5,000 on long contexts.
    """
    queries = _finite("topk_overlap: queries", queries, np.float64)
    keys = _finite("topk_overlap: keys", keys, np.float64)
    if queries.ndim != 3 or keys.ndim != 3 or queries.shape[1:] != keys.shape[1:] or queries.shape[0] % keys.shape[0]:
        got = f"queries {list(queries.shape)} and keys {list(keys.shape)}"
        raise InvalidInputError("topk_overlap", got, "[Q, L, D] and [H, L, D], Q a multiple of H")
    heads, length, _ = queries.shape
    half = length // 2
    if length < 4 or not 1 <= k <= half:
        raise InvalidInputError("topk_overlap: k", f"{k} of {length} tokens", f"at least 4 tokens, k from 1 to {half}")
    if pairs < 1:
        raise InvalidInputError("topk_overlap: pairs", pairs, "at least 1")
    rng = np.random.default_rng(seed)
    head = np.sort(rng.integers(heads, size=pairs))
    distance = np.exp(rng.uniform(0, np.log(half), size=pairs)).astype(np.int64)
    first = rng.integers(half, length - distance)
    second = first + distance
    cosine, overlap = np.empty(pairs), np.empty(pairs)
    for pair in range(pairs):
        both = queries[head[pair], [first[pair], second[pair]]]  # [2, D]
        common = keys[head[pair] * keys.shape[0] // heads, : first[pair] + 1]
        top_of_first, top_of_second = top_tokens(both @ common.T, k)
        overlap[pair] = recall(top_of_first, top_of_second)
        units = _normalised(both)
        cosine[pair] = units[0] @ units[1]
    return QueryPairs(head, first, second, cosine, overlap)


def overlap_bound(query: Array, keys: Array, k: int, cosine: Array, *, sharp: bool = False) -> NDArray[np.float64]:
    """Lower bound of the top-k overlap between `query` and any query at this cosine to it, [...] in 0..1.

    `query` [D], `keys` [N, D], `cosine` [...] in −1..1. Two keys can swap their order only if their scores by the unit
    query differ by at most ‖q − q'‖ (‖kᵢ‖ + ‖kⱼ‖), with ‖q − q'‖ = √(2 − 2 cos). With t such pairs, at most √t of the
    k keys can be lost: the overlap is at least 1 − ⌊√t⌋ / k.

    `sharp`: the larger of the paper's bound and ours, which is mostly the tighter one. To lose s keys, s keys of the
    top k and s other keys must be able to swap in all s² pairs, so only pairs across the boundary matter. For our bound
    keys are centred first, which shifts all scores equally and changes no order; where it lengthens keys, the paper's
    bound can be the larger.

    Raises InvalidInputError for shapes that do not match, values that are not finite, `k` outside 1 to N, a cosine
    outside −1..1, or a zero query.

    Source: CTkvr, appendix A, Lemmas 1 and 2 and Theorem 1, solved for the overlap instead of the angle. Deviations:
    the lemma assumes unit keys, which are ordered by cosine. With the key norms in the condition it is valid for q·k,
    by which keys are retrieved; for unit keys it equals the paper's 4 sin(θ/2). Pairs that differ by exactly the limit
    are counted, so that ties and rounding cannot break the bound.
    """
    query, keys = _finite("overlap_bound: query", query, np.float64), _finite("overlap_bound: keys", keys, np.float64)
    cosine = np.asarray(cosine, np.float64)
    if query.ndim != 1 or keys.ndim != 2 or keys.shape[1:] != query.shape or not query.any():
        got = f"query {list(query.shape)} and keys {list(keys.shape)}"
        raise InvalidInputError("overlap_bound", got, "[D], not zero, and [N, D]")
    if not 1 <= k <= len(keys):
        raise InvalidInputError("overlap_bound: k", k, f"1 to {len(keys)}")
    if not (np.abs(cosine) <= 1).all():
        raise InvalidInputError("overlap_bound: cosine", cosine, "−1 to 1")
    scores = keys @ (query / np.linalg.norm(query))
    best = np.zeros(len(keys), bool)
    best[top_tokens(scores, k)] = True
    turned = np.sqrt(2.0 - 2.0 * cosine.ravel())  # ‖q − q'‖ of unit queries
    lost = _most_lost(scores, np.linalg.norm(keys, axis=-1), best, turned, _lost_by_inversions)
    if sharp:
        centred = np.linalg.norm(keys - keys.mean(0), axis=-1)
        lost = np.minimum(lost, _most_lost(scores, centred, best, turned, _lost_at_the_boundary))
    return np.maximum(1.0 - lost.reshape(cosine.shape) / k, 0.0)


def _most_lost(
    scores: Array, norms: Array, best: NDArray[np.bool_], turned: Array, count: Callable[[Array, Array, Any], int]
) -> NDArray[np.int64]:
    """The most keys of `best` that `count` allows to be lost, for each length ‖q − q'‖ in `turned`."""
    reach = turned[:, None] * norms  # how far each score can move
    return np.array([count(*ends, best) for ends in zip(scores - reach, scores + reach, strict=True)], np.int64)


def _lost_by_inversions(lowest: Array, highest: Array, best: NDArray[np.bool_]) -> int:
    """⌊√t⌋ for the t pairs of keys that can swap their order."""
    count = len(lowest)
    reached = count - np.searchsorted(np.sort(highest), lowest, side="left")  # keys whose highest is at or above it
    # This counts the key itself, and every pair once more, for the order that it has anyway.
    return int(np.sqrt(max(int(reached.sum()) - count - count * (count - 1) // 2, 0)))


def _lost_at_the_boundary(lowest: Array, highest: Array, best: NDArray[np.bool_]) -> int:
    """Largest s such that the s lowest of the top-k keys can all fall to or below the s highest other keys."""
    fallen, risen = np.sort(lowest[best]), np.sort(highest[~best])[::-1]
    count = min(len(fallen), len(risen))
    return int((fallen[:count] <= risen[:count]).sum())


def _finite(name: str, array: Array, dtype: Any = np.float32) -> Array:
    array = np.asarray(array).astype(dtype)
    if not np.isfinite(array).all():
        raise InvalidInputError(name, "NaN or infinity", "finite numbers")
    return array


def _normalised(vectors: Array) -> Array:
    """Unit vectors; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0))


def _units(operation: str, vectors: Array, least: int) -> Array:
    """Checked and normalised vectors, float32 [..., L, D]."""
    vectors = np.asarray(vectors)
    if vectors.ndim < 2 or vectors.shape[-2] < least or 0 in vectors.shape:
        raise InvalidInputError(f"{operation}: vectors", list(vectors.shape), f"[..., L, D] with L >= {least}")
    return _normalised(_finite(f"{operation}: vectors", vectors))
