"""Query centroids: some of the prompt's queries, each with the list of the keys that it attends most (qcIVF)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from kvviz_kernels.inverted_file import best_first, ivf_lists, ivf_union
from kvviz_kernels.selection import GROUPS, Group
from torch import Tensor

from ..errors import InvalidInputError, UnknownNameError

__all__ = [
    "CHOICES",
    "QueryCentroidIndex",
    "UnionOfLists",
    "best_first",
    "centroid_positions",
    "query_centroids",
    "union_of_lists",
]

CHOICES = ("final", "init", "random", "equidistant")


@dataclass(frozen=True, eq=False)
class QueryCentroidIndex:
    """Query centroids and, for each, the positions of the keys that it attends most.

    R rows of lists: one a KV head, or one a query head where group="each".
    """

    centroids: Tensor  # [..., Q, C, D]: the queries themselves, in their dtype
    lists: Tensor  # [..., R, C, rho] int32: positions, the most attended first, -1 pads at the end
    positions: Tensor  # [C] int64: where the centroids stand, ascending


class UnionOfLists(NamedTuple):
    """The distinct entries of some lists: a row each, ascending, -1 pads at the end.

    `tokens` [..., U] are the positions, `first` [..., U] int64 the place among the entries where each occurs first (0
    for a pad), `counts` [...] how many there are; U is the largest of them, at least 1.
    """

    tokens: Tensor
    first: Tensor
    counts: Tensor


@torch.no_grad()
def query_centroids(
    queries: Tensor,
    keys: Tensor,
    *,
    n_centroids: int,
    list_length: int,
    group: Group = "max",
    choice: str = "final",
    within: tuple[int, int] | None = None,
    causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    seed: int = 0,
) -> QueryCentroidIndex:
    """The query-centroid inverted file of a prompt: its last `n_centroids` queries and their `list_length` best keys.

    queries [..., Q, L, D] and keys [..., H, L, D] after RoPE, floats of any dtype; computed in float32. Every
    centroid's softmax weights over all keys are reduced over the query heads of a KV head (`group`, max in the paper),
    and the largest are listed; equal weights go to the earlier key. Each prompt of a batch gets what it gets alone.

    choice: "final" the last queries, "init" the first, "equidistant" at even distances up to the last, "random" those
    of `seed`. within: the positions (start, stop) that lists may name, all by default; the softmax is over all keys
    either way. causal: a centroid at position p sees the keys up to p only, and lists are padded with -1 where it sees
    fewer than `list_length`. The default is the paper's: its softmax is over the full key cache, without a mask, and
    so with "init" lists of the whole prompt come from queries that never saw it. scale: of the logits, D^-0.5 by
    default; softcap bounds them as Gemma 2 does.

    Operations: 2·Q·C·L·D for the logits, 5·Q·C·L for softmax and maximum, and a partial sort of H·C·L weights. One
    pass, no iteration. k-means of the same keys into K clusters takes 2·T·H·K·L·D for T iterations: the ratio is
    T·K·H / (C·Q) in its disfavour, which is T / (5·G) for C = L/16, K = L/80 and G query heads a KV head, and T / G
    for K = C. While C grows with L both are quadratic in L; from L = 16·2048 on, where C stays at 2,048, this one is
    linear. Memory: the lists, and blocks of weights, a few at a time; never [Q, C, L]. A block is of one KV head on the
    CPU, at most max(½ Mi, 16·G·L) weights; on a GPU with Triton at most 64 Mi reduced weights, and no logits are kept:
    they are computed twice, so that the product counts twice.

    What that allows: 131,072 tokens, 32 query heads of 128 numbers and C = 2,048 are 2.2·10¹² operations a layer for
    one product, 2.2 ms at 989·10¹² a second, which is an H200's peak in bfloat16 by its data sheet. One ms a layer is
    out of reach there; two products at half of the peak allow it up to C = 230. Table 9 of the paper has 0.43 ms at 128
    Ki tokens and names no C: at its C = 1,024 (appendix C.2) one product in that time would be 2.6·10¹⁵ operations a
    second, at C = 320 (where accuracy levels off, table 14) 0.8·10¹⁵. So that time is not of a whole layer at these C,
    or not of the finished computation.

    Raises InvalidInputError for shapes that do not fit, keys or queries that are not finite, n_centroids outside 1 to
    L, a range `within` that is empty or beyond the keys, list_length outside 1 to the keys it covers; UnknownNameError
    for an unknown group or choice.

    Source: CTkvr (arXiv 2512.15550), `qcIVF`, section 3.1.1 and algorithm 1; table 4 for the choices.
    """
    start, stop = (0, keys.shape[-2]) if within is None else within
    _check(queries, keys, n_centroids, list_length, group, choice, (start, stop))
    positions = centroid_positions(keys.shape[-2], n_centroids, choice, seed=seed).to(keys.device)
    centroids = queries[..., positions, :]  # [..., Q, C, D]
    lists = ivf_lists(
        centroids,
        keys,
        list_length,
        scale=queries.shape[-1] ** -0.5 if scale is None else scale,
        group=group,
        softcap=softcap,
        within=(start, stop),
        last=positions if causal else None,
    )
    return QueryCentroidIndex(centroids, lists, positions)


def centroid_positions(length: int, n_centroids: int, choice: str, *, seed: int = 0) -> Tensor:
    """Positions of the queries that become centroids, distinct and ascending, int64 [C] on the CPU.

    Raises UnknownNameError for a choice that is not in CHOICES. Source: CTkvr (arXiv 2512.15550), section 4.3.1,
    "Position of C maintained centroids". Where evenly spaced ones stand is not in the paper: here the last token of
    each of C runs of nearly equal length.
    """
    if choice == "final":
        return torch.arange(length - n_centroids, length)
    if choice == "init":
        return torch.arange(n_centroids)
    if choice == "equidistant":
        return (torch.arange(n_centroids) + 1) * length // n_centroids - 1
    if choice == "random":
        every = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
        return every[:n_centroids].sort().values
    raise UnknownNameError("query_centroids: choice", choice, CHOICES)


def union_of_lists(entries: Tensor, length: int, *, width: int | None = None) -> UnionOfLists:
    """The distinct positions among entries [..., N], an int tensor of positions below `length`, -1 pads ignored.

    Waits for the device, since the widest row says how wide the result is, unless `width` says it (see
    `kvviz.kernels.ivf_union`).
    """
    return UnionOfLists(*ivf_union(entries, length, width=width))


def _check(
    queries: Tensor,
    keys: Tensor,
    n_centroids: int,
    list_length: int,
    group: str,
    choice: str,
    within: tuple[int, int],
) -> None:
    shapes = f"queries {list(queries.shape)} and keys {list(keys.shape)}"
    fit = (
        queries.dim() == keys.dim() >= 3
        and queries.shape[:-3] == keys.shape[:-3]
        and queries.shape[-2:] == keys.shape[-2:]
        and keys.shape[-3] > 0
        and queries.shape[-3] % keys.shape[-3] == 0
        and math.prod(queries.shape) > 0
    )
    if not fit:
        wanted = "queries [..., Q, L, D] and keys [..., H, L, D] with Q a multiple of H"
        raise InvalidInputError("query_centroids: queries and keys", shapes, wanted)
    for name, tensor in (("queries", queries), ("keys", keys)):
        if not tensor.is_floating_point() or not torch.isfinite(tensor).all():
            raise InvalidInputError(f"query_centroids: {name}", f"{tensor.dtype}, NaN or infinity", "finite floats")
    if group not in GROUPS:
        raise UnknownNameError("query_centroids: group", str(group), GROUPS)
    if choice not in CHOICES:
        raise UnknownNameError("query_centroids: choice", str(choice), CHOICES)
    length, (start, stop) = keys.shape[-2], within
    if not 1 <= n_centroids <= length:
        raise InvalidInputError("query_centroids: n_centroids", n_centroids, f"1 to {length}, the number of queries")
    if not 0 <= start < stop <= length:
        raise InvalidInputError("query_centroids: within", within, f"a range of the {length} keys, not empty")
    if not 1 <= list_length <= stop - start:
        wanted = f"1 to {stop - start}, the keys that a list may name"
        raise InvalidInputError("query_centroids: list_length", list_length, wanted)
