"""Inverted file of query centroids: lists of the keys with the most attention, and the union of lists."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..dispatch import Impl, form, use_fused
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
    """Positions of the keys with the most attention from each centroid, int32 [..., R, C, rho], padded with -1.

    centroids [..., Q, C, D] and keys [..., H, L, D], any float dtype, finite, computed in float32; Q is a multiple of
    H. Each centroid's softmax weights over all keys are reduced over the query heads of a KV head by `group`: "max",
    "mean" or "sum" (R = H), or not reduced, "each" (R = Q). The `list_length` (rho) largest are listed, the largest
    first; ties go to the earlier key. scale multiplies the logits, softcap limits them by a tanh. within: the positions
    (start, stop) that may be listed; the softmax is still over all keys. last: int64 [C], the position of the last key
    that each centroid attends to; by default all keys.

    The naive form computes each prompt of the leading dimensions separately, so that its lists do not depend on the
    others. The fused form computes the logits twice, for the normalisers and for the weights, and stores neither. Both
    hold the reduced weights of only some centroids at a time. Raises ValueError for an unknown group.

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
    entries: Tensor, length: int, *, width: int | None = None, places: bool = True, impl: Impl = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct positions among the entries of each row, the first place of each, and their number.

    entries [..., N], integers; those below 0 or from `length` on are ignored. Returns tokens int64 [..., U], ascending,
    padded with -1; first int64 [..., U], the place of each token's first occurrence among the entries, 0 for padding,
    or an empty tensor [..., 0] with places=False, which saves time; counts int64 [...]. U is the largest count, at
    least 1, and the host has to wait for it; or it is `width`, without waiting. A `width` of N is always enough; a
    smaller one drops tokens, which counts still includes.

    Tokens are marked in a table of `length` places per row (bits in the fused form). Nothing is sorted.
    """
    chosen = form("ivf_union", impl, entries, entries)
    if chosen == "fused":
        from . import fused_union

        return fused_union.ivf_union(entries, length, width=width, places=places)
    if chosen == "compiled":
        from . import compiled

        return compiled.ivf_union(entries, length, width=width, places=places)
    return naive.ivf_union(entries, length, width=width, places=places)
