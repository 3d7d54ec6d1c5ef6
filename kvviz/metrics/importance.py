"""Which tokens matter: exact attention weights, ranks over steps, pages that important tokens lie on, sorted mass."""

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

    `queries` [Q, L, D], `keys` [H, L, D] after RoPE, `positions` [T]: a query sees the keys up to its own position,
    and the weights of those ahead are 0. Logits are multiplied by `scale` (D ** -0.5 by default) and bounded by
    `softcap`, as `Trace.scale` and `Trace.softcap` say. `group`: "mean" averages the weights of the query heads that
    share a key/value head, [H, T, L]; "each" leaves them apart, [Q, T, L]. Computed in float32.

    Raises InvalidInputError for shapes that do not fit, positions outside the text, or values that are not finite;
    UnknownNameError for an unknown group.
    """
    if group not in _GROUPS:
        raise UnknownNameError("attention_weights: group", str(group), _GROUPS)
    queries, keys, positions = np.asarray(queries), np.asarray(keys), np.asarray(positions)
    shapes = f"queries {list(queries.shape)}, keys {list(keys.shape)}"
    if queries.ndim != 3 or keys.ndim != 3 or queries.shape[1:] != keys.shape[1:] or not keys.size:
        raise InvalidInputError("attention_weights", shapes, "queries [Q, L, D] and keys [H, L, D], none empty")
    (heads, length, dimensions), per_head = keys.shape, len(queries) // len(keys)
    if len(queries) != heads * per_head or not per_head:
        raise InvalidInputError("attention_weights", shapes, "Q a multiple of H")
    if positions.ndim != 1 or not np.issubdtype(positions.dtype, np.integer):
        got = f"{positions.dtype} {list(positions.shape)}"
        raise InvalidInputError("attention_weights: positions", got, "integers [T]")
    if positions.min(initial=0) < 0 or positions.max(initial=0) >= length:
        raise InvalidInputError("attention_weights: positions", positions.tolist(), f"0 to {length - 1}")
    asking = queries[:, positions].astype(np.float32).reshape(heads, per_head, len(positions), dimensions)
    if not (np.isfinite(asking).all() and np.isfinite(keys).all()):
        raise InvalidInputError("attention_weights", "NaN or infinity", "finite queries and keys")
    ahead = np.arange(length) > positions[:, None]
    factor = np.float32(dimensions**-0.5 if scale is None else scale)
    found = np.empty((heads if group == "mean" else len(queries), len(positions), length), np.float32)
    for head in range(heads):  # one head at a time bounds the memory
        logits = asking[head] @ keys[head].astype(np.float32).T * factor  # [G, T, L]
        if softcap is not None:
            logits = np.float32(softcap) * np.tanh(logits / np.float32(softcap))
        logits = np.where(ahead, np.float32(-np.inf), logits)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        if group == "mean":
            found[head] = weights.mean(0)
        else:
            found[head * per_head : (head + 1) * per_head] = weights
    return found


def token_ranks(weights: Array) -> NDArray[np.int64]:
    """Rank of every token at every step, int64 [..., L]: 0 for the largest weight of its row, L − 1 for the smallest.

    `weights` [..., L]. Ties go to the earlier token, as in `top_tokens`: a rank below B means that the token is among
    the B most important, and tokens ahead of a step (weight 0) rank behind all that it sees. Source: ClusterKV
    (arXiv 2412.03213), fig. 3a.
    """
    order = np.argsort(-_numbers("token_ranks", weights), axis=-1, kind="stable")
    ranks = np.empty(order.shape, np.int64)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[-1]), order.shape), axis=-1)
    return ranks


def top_kept(ranks: Array, count: int) -> Floats:
    """Share of each step's `count` most important tokens that were so at the first step, [..., T] in 0..1.

    `ranks` [..., T, L] as from `token_ranks`. The first entry is 1; what is missing later was evicted by a method that
    keeps the first step's choice. Raises InvalidInputError for a count outside 1 to L.
    """
    ranks = np.asarray(ranks)
    if ranks.ndim < 2 or not 1 <= count <= ranks.shape[-1] or not ranks.shape[-2]:
        got = f"{count} of ranks {list(ranks.shape)}"
        raise InvalidInputError("top_kept: count", got, "1 to L of ranks [..., T, L], T at least 1")
    important = ranks < count
    return np.asarray((important & important[..., :1, :]).sum(-1) / count, np.float64)


def drifting_tokens(ranks: Array, count: int = 64) -> dict[str, int]:
    """Positions of three different tokens whose rank moves most, by how it moves: "rises", "falls", "fluctuates".

    `ranks` [T, L], T at least 2, of tokens that every step sees. Only tokens that matter are asked: those among the
    `count` most important at an eighth of the steps or more (where these are fewer than three, the three that are so
    most often). Ranks are compared by their logarithm, since from 2 to 20 matters more than from 1,002 to 1,020. Rises
    and falls: the largest difference between the means of the first and the second half of the steps; fluctuates: of
    the others, the largest mean change from one step to the next. They are the extremes, not typical tokens:
    `top_kept` says how much moves in all. Source: ClusterKV (arXiv 2412.03213), fig. 3a, which shows such tokens and
    does not say how they were chosen.

    Raises InvalidInputError for other shapes, fewer than 2 steps or fewer than 3 tokens.
    """
    ranks = np.asarray(ranks)
    if ranks.ndim != 2 or len(ranks) < 2 or ranks.shape[1] < 3:
        raise InvalidInputError("drifting_tokens", list(ranks.shape), "ranks [T, L] with T >= 2 and L >= 3")
    often = (ranks < count).sum(0)
    asked = np.flatnonzero(often >= max(1, len(ranks) // 8))
    if len(asked) < 3:
        asked = np.sort(np.argsort(-often, kind="stable")[:3])
    levels, half = np.log(ranks[:, asked].astype(np.float64) + 1), len(ranks) // 2
    gain = levels[:half].mean(0) - levels[-half:].mean(0)
    unrest = np.abs(np.diff(levels, axis=0)).mean(0)
    order = np.argsort(-gain, kind="stable")
    rises, falls = order[0], order[-1]
    unrest[[rises, falls]] = -1.0
    return {"rises": int(asked[rises]), "falls": int(asked[falls]), "fluctuates": int(asked[unrest.argmax()])}


@dataclass(frozen=True)
class PageFragmentation:
    """How important tokens spread over pages; pages are counted from position 0, the last one may be short."""

    page_size: int
    counts: NDArray[np.int64]  # [..., P] important tokens of each page
    pages: NDArray[np.int64]  # [...] pages that hold an important token
    least: NDArray[np.int64]  # [...] pages that would hold them all if they lay side by side
    wasted: Floats  # [...] share of the tokens of those pages that are not important

    @property
    def tokens_per_page(self) -> NDArray[np.int64]:
        """Important tokens of every page that holds one, all rows together, [N] in 1..page_size."""
        return self.counts[self.counts > 0]


def page_fragmentation(important: Array, length: int, page_size: int = 16) -> PageFragmentation:
    """Important tokens in each page, the pages needed to hold them, and the share of those pages that is wasted.

    `important` int [..., S] holds positions, -1 pads (`top_tokens`, `Recording.oracle`); `length` tokens in all. A row
    without any important token needs no page and wastes nothing. Raises InvalidInputError for a page size below 1 or
    positions at or beyond `length`. Source: ClusterKV (arXiv 2412.03213), section II-C and fig. 3b.
    """
    if page_size < 1:
        raise InvalidInputError("page_fragmentation: page_size", page_size, "1 or more")
    mask = member_mask(important, length)
    n_pages = -(-length // page_size)
    padding = [(0, 0)] * (mask.ndim - 1) + [(0, n_pages * page_size - length)]
    counts = np.pad(mask, padding).reshape(*mask.shape[:-1], n_pages, page_size).sum(-1)  # [..., P]
    sizes = np.minimum(page_size, length - page_size * np.arange(n_pages))
    fetched, wanted = ((counts > 0) * sizes).sum(-1), counts.sum(-1)
    wasted = np.divide(fetched - wanted, fetched, out=np.zeros(fetched.shape), where=fetched > 0)
    return PageFragmentation(page_size, counts, (counts > 0).sum(-1), -(-wanted // page_size), np.asarray(wasted))


def random_page_counts(important: int, length: int, page_size: int = 16) -> Floats:
    """Share of the pages with an important token that would hold 1, 2 … `page_size` of them by chance, [page_size].

    What `page_fragmentation` is to be held against: `important` of `length` tokens drawn at random, whole pages. The
    count of a page is then hypergeometric. Raises InvalidInputError where the numbers do not fit each other.
    """
    if not 1 <= page_size <= length or not 1 <= important <= length:
        got = f"{important} important of {length} tokens, pages of {page_size}"
        raise InvalidInputError("random_page_counts", got, "both 1 to the number of tokens")
    ways = [comb(important, count) * comb(length - important, page_size - count) for count in range(1, page_size + 1)]
    return np.array([number / sum(ways) for number in ways], np.float64)  # of whole numbers, which cannot overflow


def sorted_mass(weights: Array) -> tuple[Floats, Floats]:
    """Each row's weights from the largest to the smallest, and the share that the first n of them hold, both [..., L].

    `weights` [..., L], none negative. The last share is exactly 1. Raises InvalidInputError for negative or not finite
    weights, or a row of zeros. Source: PQCache (arXiv 2407.12820), fig. 6.
    """
    found = _numbers("sorted_mass", weights)
    if found.shape[-1] == 0 or (found < 0).any() or not found.any(-1).all():
        raise InvalidInputError("sorted_mass: weights", "a negative weight or a row of zeros", "weights of attention")
    ordered = -np.sort(-found, axis=-1)
    cumulated = ordered.cumsum(-1)
    return ordered, cumulated / cumulated[..., -1:]


def tokens_for_mass(weights: Array, share: float) -> NDArray[np.int64]:
    """The fewest tokens that hold at least `share` of a row's weight, int64 [...].

    `weights` [..., L]; `share` above 0, at most 1. Raises InvalidInputError as `sorted_mass`, and for another share.
    """
    if not 0 < share <= 1:
        raise InvalidInputError("tokens_for_mass: share", share, "above 0, at most 1")
    held = sorted_mass(weights)[1]
    return np.asarray((held < share).sum(-1) + 1, np.int64)


@dataclass(frozen=True)
class PowerLaw:
    """value ≈ factor · rank ** −exponent over the ranks `first` to `last`, counted from 1, both included."""

    exponent: float
    factor: float
    r_squared: float  # of the logarithms, every rank weighted by 1 / rank
    first: int
    last: int

    def at(self, ranks: Array) -> Floats:
        """The law's values at `ranks`, counted from 1."""
        return np.asarray(self.factor * np.asarray(ranks, np.float64) ** -self.exponent, np.float64)


def power_law(values: Array, *, first: int = 1, last: int | None = None) -> PowerLaw:
    """The straight line through log value against log rank, by least squares, over the ranks `first` to `last`.

    `values` [L]: the value at rank 1, 2, … (`sorted_mass`); `last` is L by default. Every rank weighs 1 / rank, so
    that each decade of ranks counts the same and the many small weights of the tail do not outweigh the few large
    ones. A high R² says that the curve is close to straight, not that no other law fits better.

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
    r_squared = 1 - residual / spread if spread > 0 else 1.0  # equal values lie on a line of slope 0
    return PowerLaw(float(-slope), float(np.exp(y_mean - slope * x_mean)), float(r_squared), first, last)


def _numbers(operation: str, weights: Array) -> Floats:
    found = np.asarray(weights, np.float64)
    if found.ndim == 0 or not np.isfinite(found).all():
        raise InvalidInputError(f"{operation}: weights", "no axis, NaN or infinity", "finite weights [..., L]")
    return found
