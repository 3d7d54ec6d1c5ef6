"""How similar the vectors of a head are: along the sequence, by distance, and in the keys that queries choose."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError
from .selected import recall, top_tokens

Array = NDArray[Any]
_DISTANCES = 48  # of the default, equally spaced on a logarithmic axis


class DistanceCurve(NamedTuple):
    """Cosine of all pairs of tokens at each distance: the mean and two quantiles."""

    distances: NDArray[np.int64]  # [K] tokens
    mean: NDArray[np.float64]  # [..., K]
    low: NDArray[np.float64]  # [..., K]
    high: NDArray[np.float64]  # [..., K]


class QueryPairs(NamedTuple):
    """P pairs of queries of one head each: how similar they are, and how far their top-k keys agree."""

    head: NDArray[np.int64]  # [P] query head
    first: NDArray[np.int64]  # [P] position of the earlier query
    second: NDArray[np.int64]  # [P] position of the later query
    cosine: NDArray[np.float64]  # [P] in −1..1
    overlap: NDArray[np.float64]  # [P] in 0..1


def similarity_map(vectors: Array, size: int = 256) -> NDArray[np.float32]:
    """Mean cosine of every two blocks of tokens, float32 [..., n, n] with n = min(size, L).

    `vectors` [..., L, D]. Tokens are cut into n nearly equal blocks in order; with L <= size a block is one token and
    the map holds the cosines themselves. The mean cosine of two blocks is the product of their mean unit vectors, so
    it is exact and nothing of size [L, L] is made; a block beside itself counts each token's cosine of 1 with itself.
    The cosine with a zero vector is 0.

    Raises InvalidInputError for no token, values that are not finite, and a size below 1.
    Source: CentroidKV fig. 2, which draws every token; the blocks are for long sequences.
    """
    if size < 1:
        raise InvalidInputError("similarity_map: size", size, "1 or more")
    units = _units("similarity_map", vectors, 1)
    length = units.shape[-2]
    edges = np.linspace(0, length, min(size, length) + 1).astype(np.int64)
    blocks = np.add.reduceat(units, edges[:-1], axis=-2) / np.diff(edges)[:, None].astype(np.float32)  # [..., n, D]
    return np.asarray(blocks @ np.swapaxes(blocks, -1, -2), np.float32)


def log_distances(length: int) -> NDArray[np.int64]:
    """Up to 48 distances from 1 to half of `length` tokens, nearly equal steps on a logarithmic axis, ascending.

    Beyond half the length the pairs at a distance become few.
    """
    return np.unique(np.geomspace(1, max(length // 2, 1), _DISTANCES).round().astype(np.int64))


def similarity_by_distance(
    vectors: Array, distances: Array | None = None, quantiles: tuple[float, float] = (0.1, 0.9)
) -> DistanceCurve:
    """Mean and quantiles of the cosine of all pairs of tokens at each distance, [..., K].

    `vectors` [..., L, D]; `distances` int [K], in tokens, each from 1 to L − 1; left out, `log_distances(L)`. A
    distance d has L − d pairs, all counted; the cosine with a zero vector is 0.

    Raises InvalidInputError for fewer than 2 tokens, values that are not finite, distances that are no whole numbers
    in that range, and quantiles that are not 0 <= low <= high <= 1.

    Source: CentroidKV fig. 3 (keys) and CTkvr fig. 2a (queries). CentroidKV samples tokens and looks 256 tokens
    around them; here every pair counts.
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
    for place, distance in enumerate(chosen.tolist()):
        cosines = np.einsum("...ld,...ld->...l", units[..., :-distance, :], units[..., distance:, :])
        curves[0, ..., place] = cosines.mean(-1, dtype=np.float64)
        curves[1:, ..., place] = np.quantile(cosines, quantiles, axis=-1)
    return DistanceCurve(chosen.astype(np.int64), *curves)


def topk_overlap(queries: Array, keys: Array, k: int, pairs: int = 1024, seed: int = 0) -> QueryPairs:
    """Cosine and top-k overlap of `pairs` pairs of queries, each over the keys that both queries can see.

    `queries` [Q, L, D] and `keys` [H, L, D]; Q / H query heads share a key head. A pair is of one query head, drawn
    evenly, and of two positions in the second half of the sequence: their distance is drawn evenly on a logarithmic
    scale from 1 to L / 2, so that near and far pairs are both there, then their place. The keys that both see are
    those up to the earlier query. Overlap is the share of one query's k keys with the largest dot products that the
    other has too; unrelated choices would share k / keys seen. The same seed draws the same pairs.

    Raises InvalidInputError for shapes that do not fit, fewer than 4 tokens, values that are not finite, `pairs` below
    1, and `k` outside 1 to half the tokens.

    Source: CTkvr fig. 2b, |S ∩ S'| / |S| by q·k. Deviations: the paper draws pairs evenly over positions and fixes k =
    5,000 over long contexts.
    """
    queries = _finite("topk_overlap: queries", queries, np.float64)
    keys = _finite("topk_overlap: keys", keys, np.float64)
    if queries.ndim != 3 or keys.ndim != 3 or queries.shape[1:] != keys.shape[1:] or queries.shape[0] % keys.shape[0]:
        got = f"queries {list(queries.shape)} and keys {list(keys.shape)}"
        raise InvalidInputError("topk_overlap", got, "[Q, L, D] and [H, L, D], Q a multiple of H")
    heads, length, _ = queries.shape
    half = length // 2
    if length < 4 or not 1 <= k <= half:
        raise InvalidInputError("topk_overlap: k", f"{k} of {length} tokens", f"4 tokens or more, k from 1 to {half}")
    if pairs < 1:
        raise InvalidInputError("topk_overlap: pairs", pairs, "1 or more")
    random = np.random.default_rng(seed)
    head = np.sort(random.integers(heads, size=pairs))
    distance = np.exp(random.uniform(0, np.log(half), size=pairs)).astype(np.int64)
    first = random.integers(half, length - distance)
    second = first + distance
    cosine, overlap = np.empty(pairs), np.empty(pairs)
    for pair in range(pairs):
        both = queries[head[pair], [first[pair], second[pair]]]  # [2, D]
        seen = keys[head[pair] * keys.shape[0] // heads, : first[pair] + 1]
        one, other = top_tokens(both @ seen.T, k)
        overlap[pair] = recall(one, other)
        units = _normalised(both)
        cosine[pair] = units[0] @ units[1]
    return QueryPairs(head, first, second, cosine, overlap)


def overlap_bound(query: Array, keys: Array, k: int, cosine: Array, *, sharp: bool = False) -> NDArray[np.float64]:
    """Overlap of the top-k keys that no query at this cosine to `query` can fall below, [...] in 0..1.

    `query` [D], `keys` [N, D], `cosine` [...] in −1..1. Two keys can change their order only where their scores by
    the unit query differ by at most ‖q − q'‖ (‖kᵢ‖ + ‖kⱼ‖), ‖q − q'‖ = √(2 − 2 cos). With t such pairs, at most √t of
    the k keys can be lost: the overlap is at least 1 − ⌊√t⌋ / k.

    `sharp`: a bound that is never lower and mostly higher, not the paper's. Losing s keys needs s chosen and s other
    keys whose s² pairs can all change order, so only pairs across the boundary matter; and keys are measured from their
    mean, which moves all scores alike and changes no order.

    Raises InvalidInputError for shapes that do not fit, values that are not finite, `k` outside 1 to N, a cosine
    outside −1..1, and a zero query.

    Source: CTkvr, appendix A, Lemmas 1 and 2 and Theorem 1, solved for the overlap instead of the angle. Deviations:
    the lemma takes unit keys and so orders by cosine; with their lengths in the condition it holds for q·k, by which
    keys are retrieved, and for unit keys it is the paper's 4 sin(θ/2). Pairs that differ by exactly that much are
    counted, so that ties and rounding cannot break the bound.
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
    lengths = np.linalg.norm(keys - keys.mean(0) if sharp else keys, axis=-1)
    best = np.zeros(len(keys), bool)
    best[top_tokens(scores, k)] = True
    lost = [
        (_lost_at_the_boundary if sharp else _lost_by_inversions)(scores - reach, scores + reach, best)
        for reach in np.sqrt(2.0 - 2.0 * cosine.ravel())[:, None] * lengths  # how far each score can move
    ]
    return np.maximum(1.0 - np.reshape(lost, cosine.shape) / k, 0.0)


def _lost_by_inversions(lowest: Array, highest: Array, best: NDArray[np.bool_]) -> int:
    """⌊√t⌋ for the t pairs of keys whose order can change."""
    count = len(lowest)
    reached = count - np.searchsorted(np.sort(highest), lowest, side="left")  # keys whose highest is at or above it
    # Those include the key itself and, for every pair, the lower key's chance to lie below the upper one.
    return int(np.sqrt(max(int(reached.sum()) - count - count * (count - 1) // 2, 0)))


def _lost_at_the_boundary(lowest: Array, highest: Array, best: NDArray[np.bool_]) -> int:
    """Largest s for which the s chosen keys that fall lowest can all lie at or below s others that rise highest."""
    fallen, risen = np.sort(lowest[best]), np.sort(highest[~best])[::-1]
    places = min(len(fallen), len(risen))
    return int((fallen[:places] <= risen[:places]).sum())


def _finite(name: str, array: Array, dtype: Any = np.float32) -> Array:
    array = np.asarray(array).astype(dtype)
    if not np.isfinite(array).all():
        raise InvalidInputError(name, "NaN or infinity", "finite numbers")
    return array


def _normalised(vectors: Array) -> Array:
    """Unit vectors; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0))


def _units(operation: str, vectors: Array, least: int) -> Array:
    """Unit vectors float32 [..., L, D] of checked ones."""
    vectors = np.asarray(vectors)
    if vectors.ndim < 2 or vectors.shape[-2] < least or 0 in vectors.shape:
        raise InvalidInputError(f"{operation}: vectors", list(vectors.shape), f"[..., L, D] with L >= {least}")
    return _normalised(_finite(f"{operation}: vectors", vectors))
