"""Selection of tokens: scores of clusters, pages and quantized keys, and the tokens with the best scores."""

from __future__ import annotations

from torch import Tensor

from ..dispatch import Impl, form, use_fused
from . import naive
from .quantized import count_pairs, pair_cells, pairs_pay, part_tables
from .shared import GROUPS, Chosen, Group, check_group, group_scores, reduce_group

__all__ = [
    "GROUPS",
    "Group",
    "count_pairs",
    "group_scores",
    "page_scores",
    "pair_cells",
    "pairs_pay",
    "part_tables",
    "pq_scores",
    "reduce_group",
    "select_clusters",
    "take_best",
    "take_clusters",
]


def select_clusters(
    queries: Tensor,
    centroids: Tensor,
    sizes: Tensor,
    offsets: Tensor,
    order: Tensor,
    budget: int,
    *,
    group: Group,
    details: bool = False,
    impl: Impl = "auto",
) -> Chosen:
    """Tokens of the best clusters: indices int64 [B, R, S], ascending; with `details` also their clusters and scores.

    Scores are the products of queries [B, Q, D] and centroids [B, H, C, D], reduced over the query heads of a KV head
    by `group` (R = H), or not reduced ("each", R = Q). The rest is as in `take_clusters`. The fused form is one launch
    with one program per row. Raises ValueError for another `group`, or if H does not divide Q.
    Source: ClusterKV (arXiv 2412.03213), section IV-C: score, sort, prefix sum, trim, gather.
    """
    check_group("select_clusters", group, queries.shape[1], centroids.shape[1])
    lists = (sizes, offsets, order, budget)
    if use_fused("select_clusters", impl, queries):
        from . import fused

        return fused.select_clusters(queries, centroids, *lists, group=group, details=details)
    return naive.select_clusters(queries, centroids, *lists, group=group, details=details)


def take_clusters(
    scores: Tensor,
    sizes: Tensor,
    offsets: Tensor,
    order: Tensor,
    budget: int,
    *,
    details: bool = False,
    impl: Impl = "auto",
) -> Chosen:
    """Tokens of the best clusters by scores [B, R, C]: indices int64 [B, R, S], S = min(budget, L), ascending.

    Whole clusters are selected, the best first (ties: the lower number), until the budget is reached; the last one is
    trimmed to its first tokens. sizes int64 [B, H, C], offsets int64 [B, H, C+1] and order int64 [B, H, L] define the
    clusters (order lists positions cluster by cluster); R is H or a multiple of it. With `details`, the cluster (int32)
    and the score (float32) of each token follow, both [B, R, S]; otherwise None. Scores must not be NaN.
    """
    if use_fused("take_clusters", impl, scores):
        from . import fused

        return fused.take_clusters(scores, sizes, offsets, order, budget, details=details)
    return naive.take_clusters(scores, sizes, offsets, order, budget, details=details)


def take_best(scores: Tensor, count: int, *, impl: Impl = "auto") -> Tensor:
    """Positions of the `count` largest scores of each row, int64 [B, R, count], ascending.

    scores float [B, R, L], not NaN. Ties go to the earlier position; a `count` above L selects all.
    """
    chosen = form("take_best", impl, scores, scores)
    if chosen == "fused":
        from . import fused

        return fused.take_best(scores, count)
    if chosen == "compiled":
        from . import compiled

        return compiled.take_best(scores, count)
    return naive.take_best(scores, count)


def page_scores(queries: Tensor, bounds: Tensor, *, group: Group, impl: Impl = "auto") -> Tensor:
    """Upper bound of the inner products with the keys of each page, float32 [B, R, P], reduced over the group.

    queries [B, Q, D]; bounds [B, H, 2·D, P] hold the channel-wise maxima of each page, then its minima. The bound is
    the sum over channels of max(q · maximum, q · minimum). Any float dtypes, computed in float32. group: "mean", "max"
    or "sum" over the query heads of a KV head (R = H), or "each" (R = Q). Raises ValueError for another `group`, or if
    H does not divide Q. Source: Quest (arXiv 2406.10774), section 3.3.
    """
    check_group("page_scores", group, queries.shape[1], bounds.shape[1])
    if use_fused("page_scores", impl, queries):
        from . import fused

        return fused.page_scores(queries, bounds, group=group)
    return naive.page_scores(queries, bounds, group=group)


def pq_scores(
    queries: Tensor,
    centroids: Tensor,
    codes: Tensor,
    *,
    group: Group,
    scale: float | None = None,
    softcap: float | None = None,
    counts: Tensor | None = None,
    impl: Impl = "auto",
) -> Tensor:
    """Approximate scores of product-quantized tokens, float32 [B, R, L], reduced over the group.

    queries [B, Q, D] of any float dtype, centroids float32 [B, H, m, C, D/m], codes uint8 or uint16 [B, H, L, m]. A
    token's score is the sum over the m parts of query part · centroid, looked up in a table by the token's codes. With
    `scale`, each query head's scores become attention weights over the L tokens, softmax(scale · score) (`softcap`:
    softmax(softcap · tanh(scale · score / softcap))), before `group` reduces them: "mean", "max" or "sum" over the
    query heads of a KV head (R = H), or "each" (R = Q). `softcap` without `scale` has no effect.

    counts float32 [B, H, C, C], optional: the number of tokens with each pair of codes, from `count_pairs`. It saves
    the naive form on the CPU from counting them if m is 2; with it, the compiled form looks up pairs of codes. It does
    not change the result. Raises ValueError for
    another `group`, or if H does not divide Q.
    Source: PQCache (arXiv 2407.12820), section 3.1, step 4.
    """
    check_group("pq_scores", group, queries.shape[1], centroids.shape[1])
    chosen = form("pq_scores", impl, queries, centroids, codes)
    if chosen == "fused":
        from . import fused

        return fused.pq_scores(queries, centroids, codes, group=group, scale=scale, softcap=softcap)
    if chosen == "compiled":
        from . import compiled

        return compiled.pq_scores(queries, centroids, codes, group=group, scale=scale, softcap=softcap, counts=counts)
    return naive.pq_scores(queries, centroids, codes, group=group, scale=scale, softcap=softcap, counts=counts)
