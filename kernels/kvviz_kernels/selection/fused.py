"""Selection kernels in Triton: clusters in one launch, page bounds by blocks of pages, the best of a row by radix."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..tuning import best_config
from .fused_quantized import pq_scores
from .shared import Chosen

__all__ = ["page_scores", "pq_scores", "select_clusters", "take_best", "take_clusters"]

Config = dict[str, int]
PAGE_DEFAULT: Config = {"block": 128, "num_warps": 4}
PAGE_CANDIDATES: list[Config] = [
    {"block": block, "num_warps": warps} for block in (64, 128, 256) for warps in (2, 4, 8)
]
BEST_DEFAULT: Config = {"block": 8192, "num_warps": 16}
BEST_CANDIDATES: list[Config] = [
    {"block": block, "num_warps": warps} for block in (4096, 8192, 16384) for warps in (8, 16, 32)
]
CLUSTER_DEFAULT: Config = {"elements": 16384, "num_warps": 8}  # centroid numbers a program holds at once
CLUSTER_CANDIDATES: list[Config] = [
    {"elements": elements, "num_warps": warps} for elements in (8192, 16384, 32768) for warps in (4, 8, 16)
]
CANDIDATES = {"page_scores": PAGE_CANDIDATES, "take_best": BEST_CANDIDATES, "select_clusters": CLUSTER_CANDIDATES}
DEFAULT = {"page_scores": PAGE_DEFAULT, "take_best": BEST_DEFAULT, "select_clusters": CLUSTER_DEFAULT}
DIGITS: tl.constexpr = tl.constexpr(2048)  # 11 bits of a score are decided a pass: three passes for 32


def _ordered(scores: Any) -> Any:
    """Float32 as int32 in the same order; both zeros are one number."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


_ordered_function = triton.jit(_ordered)  # called rather than a decorator: type checkers without Triton see the function


def _cluster_scores(
    queries: Any, centroids: Any, members: Any, clusters: Any, known: Any, count: Any,
    GROUP: tl.constexpr, REDUCE: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr,
) -> Any:  # fmt: skip
    """Scores [BLOCK_C] of one head's centroids for the GROUP queries from `queries` on, reduced."""
    total = tl.zeros([BLOCK_C], tl.float32)
    if REDUCE == "max":
        total += float("-inf")
        for member in range(GROUP):
            own = tl.zeros([BLOCK_C], tl.float32)
            for start in range(0, D, BLOCK_D):
                dims = start + tl.arange(0, BLOCK_D)
                query = tl.load(queries + member * D + dims, mask=dims < D, other=0.0).to(tl.float32)
                mask = known[:, None] & (dims[None, :] < D)
                block = tl.load(centroids + clusters[:, None] * D + dims[None, :], mask=mask, other=0.0)
                own += tl.sum(block.to(tl.float32) * query[None, :], 1)
            total = tl.maximum(total, own)
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
    queries: Any, centroids: Any, scores: Any, sizes: Any, offsets: Any, order: Any, indices: Any, ranks: Any,
    count: Any, length: Any, slots: Any,
    ROWS: tl.constexpr, HEADS: tl.constexpr, GROUP: tl.constexpr, REDUCE: tl.constexpr, D: tl.constexpr,
    HAS_SCORES: tl.constexpr, DETAILS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, SEARCH_STEPS: tl.constexpr,
) -> None:  # fmt: skip
    """One program a row: score, sort, prefix sum, trim, gather, sort; everything between stays in registers."""
    row = tl.program_id(0).to(tl.int64)
    head = row // ROWS * HEADS + row % ROWS // (ROWS // HEADS)
    clusters = tl.arange(0, BLOCK_C)
    known = clusters < count
    if HAS_SCORES:
        ranked_by = tl.load(scores + row * count + clusters, mask=known, other=0.0).to(tl.float32)
    else:
        ranked_by = _cluster_scores_function(
            queries + row * GROUP * D, centroids + head * count * D, GROUP, clusters, known, count,
            GROUP, REDUCE, D, BLOCK_C, BLOCK_D,
        )  # fmt: skip
        tl.store(scores + row * count + clusters, ranked_by, mask=known)
    # Ascending by (score turned round, number): the best first, of equal ones the lower number; pads last.
    turned = tl.where(known, -1 - _ordered_function(ranked_by), 0x7FFFFFFF).to(tl.int64)
    packed = tl.sort((turned << 32) | clusters.to(tl.int64))
    cluster = (packed & 0xFFFFFFFF).to(tl.int32)
    real = cluster < count
    size = tl.load(sizes + head * count + cluster, mask=real, other=0).to(tl.int32)
    ends = tl.cumsum(size, 0)
    begin = tl.load(offsets + head * (count + 1) + cluster, mask=real, other=0).to(tl.int32)
    shift = begin - (ends - size)  # from a slot to its place in `order`
    slot = tl.arange(0, BLOCK_S)
    low = tl.zeros([BLOCK_S], tl.int32)  # by bisection, the first rank whose end lies behind the slot
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
    queries: Any, bounds: Any, output: Any, pages: Any, bound_batch: Any, bound_head: Any, bound_channel: Any,
    HEADS: tl.constexpr, GROUP: tl.constexpr, REDUCE: tl.constexpr, D: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_G: tl.constexpr,
) -> None:  # fmt: skip
    """One program a block of pages of one head: its bounds are read once for the whole group."""
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
    """Upper bounds of every page's inner products; see `kvviz_kernels.page_scores`."""
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


def _best(
    scores: Any, output: Any, length: Any, count: Any, BLOCK: tl.constexpr, PASSES: tl.constexpr
) -> None:
    """One program a row: the threshold by radix from the highest digit, then one walk that writes positions in order.

    The passes read the row from the L2 cache. Histograms count whole numbers, so that the order of adding is nothing.
    """
    row = tl.program_id(0).to(tl.int64)
    base = scores + row * length
    digits = tl.arange(0, DIGITS)
    prefix = tl.zeros([], tl.int64)  # the threshold's digits so far, as one number
    wanted = count + tl.zeros([], tl.int32)  # places left for scores that share the prefix
    for step in tl.static_range(PASSES):
        histogram = tl.zeros([DIGITS], tl.int32)
        for start in range(0, length, BLOCK):
            place = start + tl.arange(0, BLOCK)
            score = tl.load(base + place, mask=place < length, other=0.0).to(tl.float32)
            key = _ordered_function(score).to(tl.int64) + 2147483648  # 32 bits, none negative, and a 33rd for 3 · 11
            shift = 11 * (PASSES - 1 - step)
            sharing = (place < length) & ((key >> (shift + 11)) == prefix)
            histogram += tl.histogram(((key >> shift) & 2047).to(tl.int32), DIGITS, mask=sharing)
        from_here = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram  # with this digit or a larger one
        digit = tl.max(tl.where(from_here >= wanted, digits, 0), 0)
        wanted -= tl.sum(tl.where(digits > digit, histogram, 0), 0)
        prefix = (prefix << 11) | digit.to(tl.int64)
    written = tl.zeros([], tl.int32)
    for start in range(0, length, BLOCK):
        place = start + tl.arange(0, BLOCK)
        score = tl.load(base + place, mask=place < length, other=0.0).to(tl.float32)
        key = _ordered_function(score).to(tl.int64) + 2147483648
        equal = (place < length) & (key == prefix)
        number = tl.cumsum(equal.to(tl.int32), 0)
        taken = ((place < length) & (key > prefix)) | (equal & (number <= wanted))
        slot = written + tl.cumsum(taken.to(tl.int32), 0) - 1
        tl.store(output + row * count + slot, place.to(tl.int64), mask=taken)
        written += tl.sum(taken.to(tl.int32), 0)
        wanted -= tl.sum(equal.to(tl.int32), 0)


_best_kernel = triton.jit(_best)


def take_best(scores: Tensor, count: int, *, config: Config | None = None) -> Tensor:
    """Positions of the largest scores; see `kvviz_kernels.take_best`."""
    batch, rows, length = scores.shape
    count = max(min(count, length), 0)
    output = torch.empty((batch, rows, count), dtype=torch.int64, device=scores.device)
    if output.numel():
        config = config or best_config("take_best", scores.device, BEST_DEFAULT)
        _best_kernel[(batch * rows,)](
            scores.contiguous(), output, length, count,
            BLOCK=min(config["block"], triton.next_power_of_2(max(length, 16))), PASSES=3,
            num_warps=config["num_warps"],
        )  # fmt: skip
    return output
