"""The best scores and the scores of quantized keys, compiled for the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..compiling import Array, array_of, exponentials, helper, join, kernel, parts_of, peak_of, run
from .quantized import CELLS, LEAST_TOTAL, pairs_pay

PASSES = 4  # over the scores, by `take_best`


def take_best(scores: Tensor, count: int) -> Tensor:
    """Positions of the largest scores; see `kvviz_kernels.take_best`."""
    batch, rows, length = scores.shape
    positions = np.empty((batch, rows, max(min(count, length), 0)), np.int64)
    if positions.size:
        run(_take, PASSES * scores.numel(), array_of(scores).view(np.uint32), positions)
    return torch.from_numpy(positions)


def pq_scores(
    queries: Tensor,
    centroids: Tensor,
    codes: Tensor,
    *,
    group: str,
    scale: float | None = None,
    softcap: float | None = None,
    counts: Tensor | None = None,
) -> Tensor:
    """Approximate scores of all tokens; see `kvviz_kernels.pq_scores`."""
    (batch, heads), length, add = centroids.shape[:2], codes.shape[2], group in ("mean", "sum")
    if scale is None and add:  # linear: one query instead of the group's
        grouped = queries.float().unflatten(1, (heads, -1))
        queries, group = grouped.mean(2) if group == "mean" else grouped.sum(2), "sum"
    members = queries.shape[1] // heads
    rows = members if group == "each" else 1
    scores = np.empty((batch, heads, rows, length), np.float32)
    if not scores.size:  # a maximum over no tokens would read beyond the row
        return torch.from_numpy(scores).view(batch, heads * rows, length)
    share, cuts = 1 / members if group == "mean" else 1.0, parts_of(length)
    work = batch * heads * members * length
    inputs = array_of(queries.float()), array_of(centroids)
    if counts is not None and scale is not None and softcap is None and rows == 1 and pairs_pay(centroids, codes):
        pairs, exact = codes.numpy().view(np.uint16), np.empty((batch, heads), np.bool_)
        run(_score_pairs, work, *inputs, pairs, array_of(counts), scale, add, share, cuts, exact, scores)
        if exact.all():
            return torch.from_numpy(scores[:, :, 0])
    logits = np.empty((batch, heads, members, length), np.float32)
    limit = softcap if softcap and scale is not None else 0.0
    run(
        _score, work,
        *inputs, codes.numpy(), 1.0 if scale is None else scale, limit, scale is not None, add, share, cuts,
        logits, scores,
    )  # fmt: skip
    return torch.from_numpy(scores).view(batch, heads * rows, length)


def _ordered(bits: Any) -> Any:
    """The bits of a float32 as uint32 in the floats' order; both zeros are the same number."""
    if bits == np.uint32(0x80000000):
        bits = np.uint32(0)
    return ~bits if bits >> np.uint32(31) else bits | np.uint32(0x80000000)


def _digit(counts: Array, wanted: int) -> tuple[int, int]:
    """The largest digit with `wanted` numbers from it on, and how many of its own numbers are wanted."""
    digit = len(counts) - 1
    while counts[digit] < wanted:
        wanted -= counts[digit]
        digit -= 1
    return digit, wanted


_ordered_bits = helper(_ordered)
_digit_of = helper(_digit)


def _best(bits: Array, positions: Array) -> None:
    """A radix search for each row's threshold, 11 bits at a time, then one pass that writes positions."""
    batch, rows, length = bits.shape
    for task in prange(batch * rows):
        b, row = task // rows, task % rows
        keys = np.empty(length, np.uint32)
        high = np.zeros(2048, np.int64)
        for i in range(length):
            keys[i] = _ordered_bits(bits[b, row, i])
            high[keys[i] >> np.uint32(21)] += 1
        first, wanted = _digit_of(high, positions.shape[2])
        sharing, shared = np.empty(high[first], np.uint32), 0  # the keys with this digit
        middle = np.zeros(2048, np.int64)
        for i in range(length):
            if keys[i] >> np.uint32(21) == np.uint32(first):
                sharing[shared] = keys[i]
                shared += 1
                middle[(keys[i] >> np.uint32(10)) & np.uint32(2047)] += 1
        second, wanted = _digit_of(middle, wanted)
        prefix = np.uint32(first << 11 | second)
        low = np.zeros(1024, np.int64)
        for i in range(shared):
            if sharing[i] >> np.uint32(10) == prefix:
                low[sharing[i] & np.uint32(1023)] += 1
        third, wanted = _digit_of(low, wanted)
        least = np.uint32(first << 21 | second << 10 | third)
        slot = 0
        for i in range(length):
            if keys[i] > least:
                positions[b, row, slot] = i
                slot += 1
            elif keys[i] == least and wanted > 0:
                positions[b, row, slot] = i
                slot += 1
                wanted -= 1


def _quantized(
    queries: Array, centroids: Array, codes: Array, scale: float, softcap: float, softmax: bool, add: bool,
    share: float, cuts: int, logits: Array, scores: Array,
) -> None:  # fmt: skip
    """Tables of products per head; the tokens' logits, cut into parts of a row; then softmax and reduction per head."""
    batch, heads, members, length = logits.shape
    _, _, _, count, width = centroids.shape
    parts, factor, limit = codes.shape[3], np.float32(scale), np.float32(softcap)
    tables = np.empty((batch, heads, parts, count, members), np.float32)
    for task in prange(batch * heads):
        b, h = task // heads, task % heads
        for part in range(parts):
            for code in range(count):
                centroid = centroids[b, h, part, code]
                for g in range(members):
                    query, product = queries[b, h * members + g, part * width : (part + 1) * width], np.float32(0.0)
                    for d in range(width):
                        product += query[d] * centroid[d]
                    tables[b, h, part, code, g] = product * factor
    size = -(-length // cuts)
    for task in prange(batch * heads * cuts):
        b, h, cut = task // (heads * cuts), task // cuts % heads, task % cuts
        for token in range(min(cut * size, length), min((cut + 1) * size, length)):
            for g in range(members):
                logit = np.float32(0.0)
                for part in range(parts):
                    logit += tables[b, h, part, codes[b, h, token, part], g]
                logits[b, h, g, token] = limit * np.float32(math.tanh(logit / limit)) if limit > 0 else logit
    for task in prange(batch * heads):
        b, h = task // heads, task % heads
        room = np.empty(length, np.int32)
        for g in range(members):
            row, of_total = logits[b, h, g], np.float32(share)
            if softmax:
                of_total /= exponentials(row, peak_of(row), room)
            each = scores.shape[2] > 1
            join(scores[b, h, g if each else 0], row, of_total, g == 0 or each, add)


def _pair_scores(
    queries: Array, centroids: Array, pairs: Array, counts: Array, scale: float, add: bool, share: float, cuts: int,
    exact: Array, scores: Array,
) -> None:  # fmt: skip
    """Weights of each pair of codes per head, which the tokens look up; see `quantized._cells` for the formula."""
    batch, heads, _, count, width = centroids.shape
    length, members, factor = pairs.shape[2], queries.shape[1] // heads, np.float32(scale)
    cells = np.empty((batch, heads, count, CELLS), np.float32)
    for task in prange(batch * heads):
        b, h = task // heads, task % heads
        products, room = np.empty((2, members, count), np.float32), np.empty(count, np.int32)
        exact[b, h] = True
        for g in range(members):
            for part in range(2):
                query, row = queries[b, h * members + g, part * width : (part + 1) * width], products[part, g]
                for code in range(count):
                    centroid, product = centroids[b, h, part, code], np.float32(0.0)
                    for d in range(width):
                        product += query[d] * centroid[d]
                    row[code] = product * factor
                exponentials(row, peak_of(row), room)
            first, second, total = products[0, g], products[1, g], np.float32(0.0)
            for code in range(count):
                of_second, total_of_second = counts[b, h, code], np.float32(0.0)
                for other in range(count):
                    total_of_second += of_second[other] * first[other]
                total += total_of_second * second[code]
            exact[b, h] &= total >= LEAST_TOTAL
            of_total = np.float32(share) / total if total >= LEAST_TOTAL else np.float32(share)
            for code in range(count):
                join(cells[b, h, code], first, second[code] * of_total, g == 0, add)
    size = -(-length // cuts)
    for task in prange(batch * heads * cuts):
        b, h, cut = task // (heads * cuts), task // cuts % heads, task % cuts
        of_head, target = cells[b, h].ravel(), scores[b, h, 0]
        for token in range(min(cut * size, length), min((cut + 1) * size, length)):
            target[token] = of_head[pairs[b, h, token, 0]]


_take = kernel(_best)
_score_pairs = kernel(_pair_scores)
_score = kernel(_quantized)
