"""Query centroids (qcIVF): some of the prompt's queries, each with a list of the keys that it attends to most."""

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
    """Query centroids and, for each, the positions of the keys that it attends to most.

    R rows of lists: one per KV head or, with group="each", one per query head.
    """

    centroids: Tensor  # [..., Q, C, D]: the queries themselves, in their dtype
    lists: Tensor  # [..., R, C, rho] int32: positions, the largest weight first, -1 pads at the end
    positions: Tensor  # [C] int64: positions of the centroids, ascending


class UnionOfLists(NamedTuple):
    """The distinct entries of some lists, in one ascending row, -1 pads at the end.

    `tokens` [..., U] are the positions, `first` [..., U] int64 the index of the first entry of each (0 for a pad), and
    `counts` [...] their numbers; U is the largest count, at least 1.
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

    queries [..., Q, L, D] and keys [..., H, L, D] after RoPE, floats of any dtype; computed in float32. Each centroid's
    softmax weights over all keys are reduced over the query heads of a KV head (`group`, max in the paper), and the
    keys with the largest weights are listed; ties go to the earlier key. A prompt gets the same lists alone or in a
    batch.

    choice: "final" the last queries, "init" the first, "equidistant" at even distances up to the last, "random" by
    `seed`. within: the positions (start, stop) that lists may name, all by default; the softmax is over all keys in any
    case. causal: a centroid at position p sees only the keys up to p, and a list is padded with -1 if these are fewer
    than `list_length`. The default is the paper's: its softmax is over the full key cache, without a mask, so that with
    "init" the lists cover the whole prompt although their queries have not seen it. scale: of the logits, D^-0.5 by
    default; softcap limits them as in Gemma 2.

    Operations: 2·Q·C·L·D for the logits, 5·Q·C·L for softmax and maximum, and a partial sort of H·C·L weights, in one
    pass. k-means of the same keys into K clusters takes 2·T·H·K·L·D for T iterations, T·K·H / (C·Q) times as many; this
    is T / (5·G) for C = L/16, K = L/80 and G query heads per KV head, and T / G for K = C. While C grows with L, both
    are quadratic in L; from L = 16·2048 on, C stays at 2,048 and this function is linear. Memory: the lists and a few
    blocks of weights, never [Q, C, L]. On the CPU a block is for one KV head, at most max(½ Mi, 16·G·L) weights; on a
    GPU with Triton it has at most 64 Mi reduced weights, and the logits are computed twice instead of stored.

    Time: 131,072 tokens, 32 query heads of dimension 128 and C = 2,048 take 2.2·10¹² operations per layer for one
    product, or 2.2 ms at 989·10¹² per second, an H200's peak in bfloat16 by its data sheet. So one ms per layer is out
    of reach; two products at half of the peak reach it up to C = 230. Table 9 of the paper has 0.43 ms at 128 Ki tokens
    and gives no C. At its C = 1,024 (appendix C.2), one product in that time would take 2.6·10¹⁵ operations per second,
    at C = 320 (where accuracy levels off, table 14) 0.8·10¹⁵. So this time is not for a whole layer at these C, or not
    for the finished computation.

    Raises InvalidInputError for shapes that do not match, keys or queries that are not finite, n_centroids outside 1 to
    L, a range `within` that is empty or beyond the keys, list_length outside 1 to the length of that range;
    UnknownNameError for an unknown group or choice.

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
    "Position of C maintained centroids". The paper does not give the positions for "equidistant": here they are the
    last tokens of C runs of nearly equal length.
    """
    if choice == "final":
        return torch.arange(length - n_centroids, length)
    if choice == "init":
        return torch.arange(n_centroids)
    if choice == "equidistant":
        return (torch.arange(n_centroids) + 1) * length // n_centroids - 1
    if choice == "random":
        shuffled = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
        return shuffled[:n_centroids].sort().values
    raise UnknownNameError("query_centroids: choice", choice, CHOICES)


def union_of_lists(entries: Tensor, length: int, *, width: int | None = None, places: bool = True) -> UnionOfLists:
    """The distinct positions below `length` among integer entries [..., N]; all others are ignored.

    With places=False `first` is empty, which saves time. `width` is that of the result (see `kvviz.kernels.ivf_union`).
    Without it, the widest row determines the width, for which this function waits for the device.
    """
    return UnionOfLists(*ivf_union(entries, length, width=width, places=places))


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
    matching = (
        queries.dim() == keys.dim() >= 3
        and queries.shape[:-3] == keys.shape[:-3]
        and queries.shape[-2:] == keys.shape[-2:]
        and keys.shape[-3] > 0
        and queries.shape[-3] % keys.shape[-3] == 0
        and math.prod(queries.shape) > 0
    )
    if not matching:
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
        raise InvalidInputError("query_centroids: within", within, f"a non-empty range of the {length} keys")
    if not 1 <= list_length <= stop - start:
        wanted = f"1 to {stop - start}, the keys that a list may name"
        raise InvalidInputError("query_centroids: list_length", list_length, wanted)
