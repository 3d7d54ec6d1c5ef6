"""Token importance: exact attention weights, ranks over the steps, page fragmentation, sorted attention mass."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInputError, UnknownNameError
from .selected import member_mask

Array = NDArray[Any]
Floats = NDArray[np.float64]
_GROUPS = ("mean", "each")


def attention_weights(
    queries: Array,
    keys: Array,
    positions: Array,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    group: Literal["mean", "each"] = "mean",
) -> NDArray[np.float32]:
    """Exact causal softmax weights of the queries at `positions`, float32 [H or Q, T, L]; each row sums to 1.

    `queries` [Q, L, D], `keys` [H, L, D] after RoPE, `positions` [T]. A query attends to the keys up to its position;
    later keys have weight 0. Logits are multiplied by `scale` (default D ** -0.5) and limited by `softcap`; see
    `Trace.scale` and `Trace.softcap`. `group`: "mean" averages the weights of the query heads that share a KV head,
    [H, T, L]; "each" keeps them separate, [Q, T, L]. Computed in float32.

    Raises InvalidInputError for shapes that do not match, positions outside the text, or values that are not finite;
    UnknownNameError for an unknown group.
    """
    if group not in _GROUPS:
        raise UnknownNameError("attention_weights: group", str(group), _GROUPS)
    queries, keys, positions = np.asarray(queries), np.asarray(keys), np.asarray(positions)
    shapes = f"queries {list(queries.shape)}, keys {list(keys.shape)}"
    if queries.ndim != 3 or keys.ndim != 3 or queries.shape[1:] != keys.shape[1:] or not keys.size:
        raise InvalidInputError("attention_weights", shapes, "queries [Q, L, D] and keys [H, L, D], not empty")
    (heads, length, dimensions), per_head = keys.shape, len(queries) // len(keys)
    if len(queries) != heads * per_head or not per_head:
        raise InvalidInputError("attention_weights", shapes, "Q a multiple of H")
    if positions.ndim != 1 or not np.issubdtype(positions.dtype, np.integer):
        got = f"{positions.dtype} {list(positions.shape)}"
        raise InvalidInputError("attention_weights: positions", got, "integers [T]")
    if positions.min(initial=0) < 0 or positions.max(initial=0) >= length:
        raise InvalidInputError("attention_weights: positions", positions.tolist(), f"0 to {length - 1}")
    chosen_queries = queries[:, positions].astype(np.float32).reshape(heads, per_head, len(positions), dimensions)
    if not (np.isfinite(chosen_queries).all() and np.isfinite(keys).all()):
        raise InvalidInputError("attention_weights", "NaN or infinity", "finite queries and keys")
    later = np.arange(length) > positions[:, None]
    factor = np.float32(dimensions**-0.5 if scale is None else scale)
    result = np.empty((heads if group == "mean" else len(queries), len(positions), length), np.float32)
    for head in range(heads):  # one head at a time, to limit the memory
        logits = chosen_queries[head] @ keys[head].astype(np.float32).T * factor  # [G, T, L]
        if softcap is not None:
            logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))
        logits = np.where(later, np.float32(-np.inf), logits)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        if group == "mean":
            result[head] = weights.mean(0)
        else:
            result[head * per_head : (head + 1) * per_head] = weights
    return result


def token_ranks(weights: Array) -> NDArray[np.int64]:
    """Rank of every token at every step, int64 [..., L]: 0 for the largest weight of its row, L − 1 for the smallest.

    `weights` [..., L]. Ties go to the earlier token, as in `top_tokens`. A rank below B means that the token is among
    the B most important. Tokens after a step's query (weight 0) rank last. Source: ClusterKV (arXiv 2412.03213),
    fig. 3a.
    """
    order = np.argsort(-_numbers("token_ranks", weights), axis=-1, kind="stable")
    ranks = np.empty(order.shape, np.int64)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    return ranks


def top_kept(ranks: Array, count: int) -> Floats:
    """Share of each step's top `count` tokens that were also in the top `count` at the first step, [..., T] in 0..1.

    `ranks` [..., T, L] from `token_ranks`. The first entry is 1. A method that keeps only the first step's tokens has
    evicted the rest. Raises InvalidInputError for a count outside 1 to L.
    """
    ranks = np.asarray(ranks)
    if ranks.ndim < 2 or not 1 <= count <= ranks.shape[-1] or not ranks.shape[-2]:
        got = f"{count} of ranks {list(ranks.shape)}"
        raise InvalidInputError("top_kept: count", got, "1 to L of ranks [..., T, L], T at least 1")
    important = ranks < count
    return np.asarray((important & important[..., :1, :]).sum(-1) / count, np.float64)


def drifting_tokens(ranks: Array, count: int = 64) -> dict[str, int]:
    """Positions of three tokens whose rank changes most, by kind of change: "rises", "falls", "fluctuates".

    `ranks` [T, L], T at least 2, of tokens that every step attends to. Only important tokens are considered: those in
    the top `count` in at least an eighth of the steps; if there are fewer than three, the three most often in the top.
    Ranks are compared by logarithm, since a change from 2 to 20 matters more than one from 1,002 to 1,020. "rises" and
    "falls" have the largest difference between the mean of the first and of the second half of the steps; "fluctuates"
    has the largest mean change between two steps among the remaining tokens. These are extremes, not typical tokens;
    `top_kept` measures the overall change. Source: ClusterKV (arXiv 2412.03213), fig. 3a, which does not say how its
    tokens were chosen.

    Raises InvalidInputError for other shapes, fewer than 2 steps or fewer than 3 tokens.
    """
    ranks = np.asarray(ranks)
    if ranks.ndim != 2 or len(ranks) < 2 or ranks.shape[1] < 3:
        raise InvalidInputError("drifting_tokens", list(ranks.shape), "ranks [T, L] with T >= 2 and L >= 3")
    often = (ranks < count).sum(0)
    candidates = np.flatnonzero(often >= max(1, len(ranks) // 8))
    if len(candidates) < 3:
        candidates = np.sort(np.argsort(-often, kind="stable")[:3])
    levels, half = np.log(ranks[:, candidates].astype(np.float64) + 1), len(ranks) // 2
    gain = levels[:half].mean(0) - levels[-half:].mean(0)
    fluctuation = np.abs(np.diff(levels, axis=0)).mean(0)
    order = np.argsort(-gain, kind="stable")
    rises, falls = order[0], order[-1]
    fluctuation[[rises, falls]] = -1.0
    return {
        "rises": int(candidates[rises]),
        "falls": int(candidates[falls]),
        "fluctuates": int(candidates[fluctuation.argmax()]),
    }


@dataclass(frozen=True)
class PageFragmentation:
    """How important tokens are spread over pages. Pages start at position 0; the last one may be short."""

    page_size: int
    counts: NDArray[np.int64]  # [..., P] important tokens per page
    pages: NDArray[np.int64]  # [...] pages with at least one important token
    least: NDArray[np.int64]  # [...] pages needed if the important tokens were contiguous
    wasted: Floats  # [...] share of the tokens on those pages that are not important

    @property
    def tokens_per_page(self) -> NDArray[np.int64]:
        """Important tokens per page, over the pages of all rows that hold at least one, [N] in 1..page_size."""
        return self.counts[self.counts > 0]


def page_fragmentation(important: Array, length: int, page_size: int = 16) -> PageFragmentation:
    """Important tokens per page, the number of pages that hold them, and the share of those pages that is wasted.

    `important` int [..., S] holds positions, padded with -1 (`top_tokens`, `Recording.oracle`); `length` is the number
    of tokens. A row without important tokens needs no page and wastes nothing. Raises InvalidInputError for a page size
    below 1 or positions at or beyond `length`. Source: ClusterKV (arXiv 2412.03213), section II-C and fig. 3b.
    """
    if page_size < 1:
        raise InvalidInputError("page_fragmentation: page_size", page_size, "1 or more")
    mask = member_mask(important, length)
    n_pages = -(-length // page_size)
    padding = [(0, 0)] * (mask.ndim - 1) + [(0, n_pages * page_size - length)]
    counts = np.pad(mask, padding).reshape(*mask.shape[:-1], n_pages, page_size).sum(-1)  # [..., P]
    sizes = np.minimum(page_size, length - page_size * np.arange(n_pages))
    fetched, needed = ((counts > 0) * sizes).sum(-1), counts.sum(-1)
    wasted = np.divide(fetched - needed, fetched, out=np.zeros(fetched.shape), where=fetched > 0)
    return PageFragmentation(page_size, counts, (counts > 0).sum(-1), -(-needed // page_size), np.asarray(wasted))


def random_page_counts(important: int, length: int, page_size: int = 16) -> Floats:
    """Share of the non-empty pages that hold 1, 2 … `page_size` important tokens by chance, [page_size].

    The baseline for `page_fragmentation`: `important` of `length` tokens are drawn at random. The count per (full) page
    is then hypergeometric. Raises InvalidInputError for numbers outside 1 to `length`.
    """
    if not 1 <= page_size <= length or not 1 <= important <= length:
        got = f"{important} important of {length} tokens, pages of {page_size}"
        raise InvalidInputError("random_page_counts", got, "both from 1 to the number of tokens")
    ways = [comb(important, count) * comb(length - important, page_size - count) for count in range(1, page_size + 1)]
    return np.array([number / sum(ways) for number in ways], np.float64)  # Python integers, which cannot overflow


def sorted_mass(weights: Array) -> tuple[Floats, Floats]:
    """Each row's weights in descending order, and their cumulative share of the row's sum, both [..., L].

    `weights` [..., L], not negative. The last share is exactly 1. Raises InvalidInputError for weights that are
    negative or not finite, or a row of zeros. Source: PQCache (arXiv 2407.12820), fig. 6.
    """
    numbers = _numbers("sorted_mass", weights)
    if numbers.shape[-1] == 0 or (numbers < 0).any() or not numbers.any(-1).all():
        raise InvalidInputError("sorted_mass: weights", "a negative weight or a row of zeros", "attention weights")
    ordered = -np.sort(-numbers, axis=-1)
    cumulated = ordered.cumsum(-1)
    return ordered, cumulated / cumulated[..., -1:]


def tokens_for_mass(weights: Array, share: float) -> NDArray[np.int64]:
    """The smallest number of tokens that hold at least `share` of a row's weight, int64 [...].

    `weights` [..., L]; `share` above 0, at most 1. Raises InvalidInputError for another share, and as `sorted_mass`.
    """
    if not 0 < share <= 1:
        raise InvalidInputError("tokens_for_mass: share", share, "above 0, at most 1")
    cumulative = sorted_mass(weights)[1]
    return np.asarray((cumulative < share).sum(-1) + 1, np.int64)


@dataclass(frozen=True)
class PowerLaw:
    """A power law, value ≈ factor · rank ** −exponent, over the ranks `first` to `last` (from 1, both included)."""

    exponent: float
    factor: float
    r_squared: float  # of the logarithms, each rank weighted by 1 / rank
    first: int
    last: int

    def at(self, ranks: Array) -> Floats:
        """The law's values at `ranks`, counted from 1."""
        return np.asarray(self.factor * np.asarray(ranks, np.float64) ** -self.exponent, np.float64)


def power_law(values: Array, *, first: int = 1, last: int | None = None) -> PowerLaw:
    """The power law that fits `values` over the ranks `first` to `last`: least squares of log value on log rank.

    `values` [L]: the value at rank 1, 2, … (`sorted_mass`); `last` is L by default. Each rank has weight 1 / rank, so
    that every decade of ranks counts equally and the long tail does not outweigh the few large weights. A high R² means
    that the curve is nearly straight; another law may still fit better.

    Raises InvalidInputError for fewer than 3 ranks, or values in that range that are not above 0 and finite.
    """
    values = np.asarray(values, np.float64)
    last = len(values) if last is None and values.ndim == 1 else last
    if values.ndim != 1 or last is None or not (first >= 1 and first + 2 <= last <= len(values)):
        got = f"ranks {first} to {last} of values {list(values.shape)}"
        raise InvalidInputError("power_law", got, "at least 3 ranks within values [L]")
    inside = values[first - 1 : last]
    if not (np.isfinite(inside) & (inside > 0)).all():
        raise InvalidInputError("power_law", f"a value of {inside.min()}", f"values above 0 at ranks {first} to {last}")
    ranks = np.arange(first, last + 1)
    x, y, share = np.log(ranks), np.log(inside), 1 / ranks
    share /= share.sum()
    x_mean, y_mean = share @ x, share @ y
    slope = (share @ ((x - x_mean) * (y - y_mean))) / (share @ (x - x_mean) ** 2)
    residual = share @ (y - y_mean - slope * (x - x_mean)) ** 2
    spread = share @ (y - y_mean) ** 2
    r_squared = 1 - residual / spread if spread > 0 else 1.0  # constant values lie on a line of slope 0
    return PowerLaw(float(-slope), float(np.exp(y_mean - slope * x_mean)), float(r_squared), first, last)


def _numbers(operation: str, weights: Array) -> Floats:
    numbers = np.asarray(weights, np.float64)
    if numbers.ndim == 0 or not np.isfinite(numbers).all():
        raise InvalidInputError(f"{operation}: weights", "a scalar, NaN or infinity", "finite weights [..., L]")
    return numbers
