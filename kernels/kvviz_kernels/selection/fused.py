"""Selection kernels in Triton: clusters in one launch, and page bounds by blocks of pages."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor

from ..tuning import Config, best_config, grid
from . import fused_best, fused_quantized
from .fused_best import ordered_function, take_best
from .fused_quantized import pq_scores
from .shared import Chosen

__all__ = ["page_scores", "pq_scores", "select_clusters", "take_best", "take_clusters"]

PAGE_DEFAULT: Config = {"block": 128, "num_warps": 4}
CLUSTER_DEFAULT: Config = {"elements": 16384, "num_warps": 8}  # elements of centroids that a program holds at once
CANDIDATES = {
    "page_scores": grid(block=(64, 128, 256), num_warps=(2, 4, 8)),
    "take_best": fused_best.CANDIDATES,
    "pq_scores": fused_quantized.CANDIDATES,
    "select_clusters": grid(elements=(8192, 16384, 32768), num_warps=(4, 8, 16)),
}


def _cluster_scores(
    queries: tensor, centroids: tensor, clusters: tensor, known: tensor,
    GROUP: tl.constexpr, REDUCE: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
) -> tensor:  # fmt: skip
    """Scores [BLOCK_C] of one head's centroids for the GROUP queries starting at `queries`, reduced."""
    total = tl.zeros([BLOCK_C], tl.float32)
    if REDUCE == "max":
        total += float("-inf")
        for member in range(GROUP):
            product = tl.zeros([BLOCK_C], tl.float32)
            for start in range(0, D, BLOCK_D):
                dims = start + tl.arange(0, BLOCK_D)
                query = tl.load(queries + member * D + dims, mask=dims < D, other=0.0).to(tl.float32)
                mask = known[:, None] & (dims[None, :] < D)
                block = tl.load(centroids + clusters[:, None] * D + dims[None, :], mask=mask, other=0.0)
                product += tl.sum(block.to(tl.float32) * query[None, :], 1)
            total = tl.maximum(total, product)
    else:
        for start in range(0, D, BLOCK_D):
            dims = start + tl.arange(0, BLOCK_D)
            query = tl.zeros([BLOCK_D], tl.float32)
            for member in range(GROUP):
                query += tl.load(queries + member * D + dims, mask=dims < D, other=0.0).to(tl.float32)
            if REDUCE == "mean":
                query /= GROUP
            mask = known[:, None] & (dims[None, :] < D)
            block = tl.load(centroids + clusters[:, None] * D + dims[None, :], mask=mask, other=0.0)
            total += tl.sum(block.to(tl.float32) * query[None, :], 1)
    return total


_cluster_scores_function = triton.jit(_cluster_scores)


def _take(
    queries: tensor, centroids: tensor, scores: tensor, sizes: tensor, offsets: tensor, order: tensor,
    indices: tensor, ranks: tensor,
    count: tensor, length: tensor, slots: tensor,
    ROWS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, REDUCE: tl.constexpr, D: tl.constexpr,
    HAS_SCORES: tl.constexpr, DETAILS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SEARCH_STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """One program per row: score, sort, prefix sum, trim, gather, sort; all intermediates stay in registers."""
    row = tl.program_id(0).to(tl.int64)
    head = row // ROWS * HEADS + row % ROWS // (ROWS // HEADS)
    clusters = tl.arange(0, BLOCK_C)
    known = clusters < count
    if HAS_SCORES:
        ranked_by = tl.load(scores + row * count + clusters, mask=known, other=0.0).to(tl.float32)
    else:
        ranked_by = _cluster_scores_function(
            queries + row * GROUP * D, centroids + head * count * D, clusters, known,
            GROUP, REDUCE, D, BLOCK_C, BLOCK_D,
        )  # fmt: skip
        tl.store(scores + row * count + clusters, ranked_by, mask=known)
    # Ascending by (negated score, number): the best first, ties by the lower number, padding last.
    turned = tl.where(known, -1 - ordered_function(ranked_by), 0x7FFFFFFF).to(tl.int64)
    packed = tl.sort((turned << 32) | clusters.to(tl.int64))
    cluster = (packed & 0xFFFFFFFF).to(tl.int32)
    real = cluster < count
    size = tl.load(sizes + head * count + cluster, mask=real, other=0).to(tl.int32)
    ends = tl.cumsum(size, 0)
    begin = tl.load(offsets + head * (count + 1) + cluster, mask=real, other=0).to(tl.int32)
    shift = begin - (ends - size)  # from a slot to its place in `order`
    slot = tl.arange(0, BLOCK_S)
    low = tl.zeros([BLOCK_S], tl.int32)  # by bisection: the first rank whose end is after the slot
    high = tl.full([BLOCK_S], BLOCK_C, tl.int32)
    for _ in range(SEARCH_STEPS):
        middle = (low + high) // 2
        behind = tl.gather(ends, tl.minimum(middle, BLOCK_C - 1), 0) > slot
        searching = low < high
        high = tl.where(searching & behind, middle, high)
        low = tl.where(searching & (behind == 0), middle + 1, low)
    rank = tl.minimum(low, BLOCK_C - 1)
    inside = slot < slots
    place = tl.gather(shift, rank, 0) + slot
    position = tl.load(order + head * length + place, mask=inside, other=0)
    position = tl.where(inside, position, 0x7FFFFFFF)
    if DETAILS:
        both = tl.sort((position << 32) | tl.gather(cluster, rank, 0).to(tl.int64))
        tl.store(indices + row * slots + slot, both >> 32, mask=inside)
        tl.store(ranks + row * slots + slot, (both & 0xFFFFFFFF).to(tl.int32), mask=inside)
    else:
        tl.store(indices + row * slots + slot, tl.sort(position.to(tl.int32)).to(tl.int64), mask=inside)


_take_kernel = triton.jit(_take)


def select_clusters(
    queries: Tensor,
    centroids: Tensor,
    sizes: Tensor,
    offsets: Tensor,
    order: Tensor,
    budget: int,
    *,
    group: str,
    details: bool = False,
    config: Config | None = None,
) -> Chosen:
    """Tokens of the best clusters; see `kvviz_kernels.select_clusters`. Positions below 2^31."""
    rows = queries.shape[1] if group == "each" else centroids.shape[1]
    scores = torch.empty((queries.shape[0], rows, centroids.shape[2]), dtype=torch.float32, device=queries.device)
    return _launch_take(queries, centroids, scores, sizes, offsets, order, budget, group, details, config)


def take_clusters(
    scores: Tensor,
    sizes: Tensor,
    offsets: Tensor,
    order: Tensor,
    budget: int,
    *,
    details: bool = False,
    config: Config | None = None,
) -> Chosen:
    """Tokens of the best clusters by given scores; see `kvviz_kernels.take_clusters`. Positions below 2^31."""
    return _launch_take(None, None, scores, sizes, offsets, order, budget, "each", details, config)


def _launch_take(
    queries: Tensor | None, centroids: Tensor | None, scores: Tensor, sizes: Tensor, offsets: Tensor, order: Tensor,
    budget: int, group: str, details: bool, config: Config | None,
) -> Chosen:  # fmt: skip
    batch, rows, count = scores.shape
    heads, length = order.shape[1:]
    slots = min(budget, length)
    indices = torch.empty((batch, rows, slots), dtype=torch.int64, device=scores.device)
    groups = torch.empty((batch, rows, slots), dtype=torch.int32, device=scores.device) if details else None
    if slots and batch:
        config = config or best_config("select_clusters", scores.device, CLUSTER_DEFAULT)
        block = triton.next_power_of_2(max(count, 16))
        scores = scores.contiguous()
        asking = scores if queries is None else queries.contiguous()
        width = 1 if queries is None else queries.shape[2]
        _take_kernel[(batch * rows,)](
            asking, scores if centroids is None else centroids.contiguous(), scores,
            sizes.contiguous(), offsets.contiguous(), order.contiguous(), indices,
            indices if groups is None else groups, count, length, slots,
            ROWS=rows, HEADS=heads, GROUP=1 if queries is None else queries.shape[1] // rows, REDUCE=group, D=width,
            HAS_SCORES=queries is None, DETAILS=details, BLOCK_C=block,
            BLOCK_D=min(max(config["elements"] // block, 4), triton.next_power_of_2(width)),
            BLOCK_S=triton.next_power_of_2(max(slots, 16)), SEARCH_STEPS=block.bit_length(),
            num_warps=config["num_warps"],
        )  # fmt: skip
    if groups is None:
        return indices, None, None
    return indices, groups, scores.gather(-1, groups.long()).float()


def _pages(
    queries: tensor, bounds: tensor, output: tensor, pages: tensor, bound_batch: tensor, bound_head: tensor,
    bound_channel: tensor,
    HEADS: tl.constexpr, GROUP: tl.constexpr, REDUCE: tl.constexpr, D: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_G: tl.constexpr,
) -> None:  # fmt: skip
    """One program per block of pages of one head: the bounds are read once for the whole group."""
    row = tl.program_id(1).to(tl.int64)
    page = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = page < pages
    base = bounds + row // HEADS * bound_batch + row % HEADS * bound_head
    member = tl.arange(0, BLOCK_G)
    total = tl.zeros([BLOCK_G, BLOCK_P], tl.float32)
    line = tl.zeros([BLOCK_P], tl.float32)
    for start in range(0, D, BLOCK_D):
        dims = start + tl.arange(0, BLOCK_D)
        channel = dims.to(tl.int64)
        mask = (dims[:, None] < D) & inside[None, :]
        upper = tl.load(base + channel[:, None] * bound_channel + page[None, :], mask=mask, other=0.0)
        lower = tl.load(base + (channel[:, None] + D) * bound_channel + page[None, :], mask=mask, other=0.0)
        upper, lower = upper.to(tl.float32), lower.to(tl.float32)
        if REDUCE == "mean" or REDUCE == "sum":  # linear in the positive and the negative part
            positive, negative = tl.zeros([BLOCK_D], tl.float32), tl.zeros([BLOCK_D], tl.float32)
            for one in range(GROUP):
                query = tl.load(queries + (row * GROUP + one) * D + dims, mask=dims < D, other=0.0).to(tl.float32)
                positive += tl.maximum(query, 0.0)
                negative += tl.minimum(query, 0.0)
            line += tl.sum(upper * positive[:, None] + lower * negative[:, None], 0)
        else:
            known = (member[:, None] < GROUP) & (dims[None, :] < D)
            query = tl.load(queries + (row * GROUP + member[:, None]) * D + dims[None, :], mask=known, other=0.0)
            query = query.to(tl.float32)
            total += tl.dot(tl.maximum(query, 0.0), upper, input_precision="ieee")
            total += tl.dot(tl.minimum(query, 0.0), lower, input_precision="ieee")
    if REDUCE == "each":
        place = (row * GROUP + member[:, None]) * pages + page[None, :]
        tl.store(output + place, total, mask=(member[:, None] < GROUP) & inside[None, :])
    else:
        if REDUCE == "max":
            line = tl.max(tl.where(member[:, None] < GROUP, total, float("-inf")), 0)
        if REDUCE == "mean":
            line /= GROUP
        tl.store(output + row * pages + page, line, mask=inside)


_pages_kernel = triton.jit(_pages)


def page_scores(queries: Tensor, bounds: Tensor, *, group: str, config: Config | None = None) -> Tensor:
    """Upper bounds of the inner products of each page; see `kvviz_kernels.page_scores`."""
    batch, heads, both, pages = bounds.shape
    members, width = queries.shape[1] // heads, both // 2
    rows = queries.shape[1] if group == "each" else heads
    output = torch.empty((batch, rows, pages), dtype=torch.float32, device=queries.device)
    if bounds.stride(3) != 1:
        bounds = bounds.contiguous()
    config = config or best_config("page_scores", queries.device, PAGE_DEFAULT)
    if pages and batch:
        _pages_kernel[(triton.cdiv(pages, config["block"]), batch * heads)](
            queries.contiguous(), bounds, output, pages, *bounds.stride()[:3],
            HEADS=heads, GROUP=members, REDUCE=group, D=width, BLOCK_P=config["block"],
            BLOCK_D=min(32, max(16, triton.next_power_of_2(width))),
            BLOCK_G=max(16, triton.next_power_of_2(members)),  # tl.dot needs at least 16 of each
            num_warps=config["num_warps"],
        )  # fmt: skip
    return output
