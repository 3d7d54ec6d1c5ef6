"""An inverted file of query centroids: the lists of keys that each attends most, and the union of some lists."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..dispatch import Impl, use_fused
from . import naive
from .shared import REDUCTIONS, best_first

__all__ = ["REDUCTIONS", "best_first", "ivf_lists", "ivf_union"]


def ivf_lists(
    centroids: Tensor,
    keys: Tensor,
    list_length: int,
    *,
    scale: float,
    group: str = "max",
    softcap: float | None = None,
    within: tuple[int, int] | None = None,
    last: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Positions of the keys that each centroid attends most, int32 [..., R, C, rho], -1 pads at the end.

    centroids [..., Q, C, D] and keys [..., H, L, D], any float dtype, finite, computed in float32; Q a multiple of H.
    Each centroid's softmax weights over all keys are reduced over the query heads of a KV head by `group`, "max",
    "mean" or "sum" (R = H), or not at all, "each" (R = Q). The `list_length` (rho) largest are listed, the largest
    first; equal weights go to the earlier key. scale multiplies the logits, softcap bounds them by a tanh. within: the
    positions (start, stop) that may be listed; the softmax is over all keys either way. last: int64 [C], the position
    of the last key that each centroid sees; without it all see all.

    The naive form takes each prompt of the leading dimensions by itself, so that its lists do not depend on the others.
    The fused form computes the logits twice, for the softmax's normalisers and for the weights, and keeps neither.
    Both hold the reduced weights of some centroids at a time, never of all. Raises ValueError for an unknown group.

    Source: CTkvr (arXiv 2512.15550), algorithm 1.
    """
    if group not in REDUCTIONS:
        raise ValueError(f"ivf_lists: got group={group!r}; wanted one of {', '.join(REDUCTIONS)}")
    within = within or (0, keys.shape[-2])
    options: dict[str, Any] = {"scale": scale, "group": group, "softcap": softcap, "within": within, "last": last}
    if use_fused("ivf_lists", impl, keys):
        from . import fused

        return fused.ivf_lists(centroids, keys, list_length, **options)
    return naive.ivf_lists(centroids, keys, list_length, **options)


def ivf_union(
    entries: Tensor, length: int, *, width: int | None = None, impl: Impl = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct positions among the entries of each row, where each occurs first, and how many there are.

    entries [..., N], integers from 0 to `length` - 1, or -1 for a pad. Returns tokens int64 [..., U], ascending, -1
    pads at the end; first int64 [..., U], the place among the entries where each token occurs first, 0 for a pad;
    counts int64 [...]. U is the largest count, at least 1, for which the host waits; or `width`, for which it does not:
    N is always enough, and tokens beyond a smaller width are dropped, while counts still count them.

    Marks the tokens in a table of `length` places a row, of bits in the fused form. Nothing is sorted.
    """
    if use_fused("ivf_union", impl, entries):
        from . import fused_union

        return fused_union.ivf_union(entries, length, width=width)
    return naive.ivf_union(entries, length, width=width)
