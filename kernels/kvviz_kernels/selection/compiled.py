"""The best scores and the scores of quantized keys, compiled for the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..compiling import Array, compiled, exponentials, parts_of, peak_of, run
from .quantized import CELLS, LEAST_TOTAL, pairs_pay


def take_best(scores: Tensor, count: int) -> Tensor:
    """Positions of the largest scores; see `kvviz_kernels.take_best`."""
    batch, rows, length = scores.shape
    positions = torch.empty((batch, rows, max(min(count, length), 0)), dtype=torch.int64)
    if positions.numel():
        bits = np.ascontiguousarray(scores.detach().numpy()).view(np.uint32)
        run(_take, bits.reshape(-1, length), positions.numpy().reshape(batch * rows, -1))
    return positions


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
    batch, heads, parts, _, width = centroids.shape
    length, weights = codes.shape[2], scale is not None
    grouped = queries.detach().float().reshape(batch, heads, -1, parts, width)
    if not weights and group in ("mean", "sum"):  # linear: one query instead of the group's
        grouped = grouped.mean(2, keepdim=True) if group == "mean" else grouped.sum(2, keepdim=True)
    by_head, members = grouped.contiguous().numpy(), grouped.shape[2]
    rows = members if group == "each" else 1
    scores = torch.empty(batch, heads * rows, length)
    by_row = scores.numpy().reshape(batch, heads, rows, length)
    share = np.float32(1 / members if group == "mean" else 1)
    table = np.ascontiguousarray(centroids.detach().numpy())
    cuts = max(parts_of(length), 1)
    if counts is not None and weights and softcap is None and rows == 1 and pairs_pay(centroids, codes):
        pairs, exact = codes.numpy().view("<u2")[..., 0], np.zeros((batch, heads), np.bool_)
        add = group in ("mean", "sum")
        run(_score_pairs, by_head, table, pairs, counts.numpy(), np.float32(scale), add, share, cuts, exact, by_row)
        if exact.all():
            return scores
    logits = np.empty((batch, heads, members, length), np.float32)
    run(
        _score, by_head, table, codes.numpy(), np.float32(scale if weights else 1),
        np.float32(softcap if softcap and weights else 0), weights, group in ("mean", "sum"), share, cuts, logits,
        by_row,
    )  # fmt: skip
    return scores


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


_ordered_bits = compiled(_ordered, parallel=False)
_digit_of = compiled(_digit, parallel=False)


def _best(bits: Array, positions: Array) -> None:
    """A radix search for each row's threshold, 11 bits at a time, then one pass that writes positions."""
    rows, length = bits.shape
    for row in prange(rows):
        keys = np.empty(length, np.uint32)
        high = np.zeros(2048, np.int64)
        for i in range(length):
            keys[i] = _ordered_bits(bits[row, i])
            high[keys[i] >> np.uint32(21)] += 1
        first, wanted = _digit_of(high, positions.shape[1])
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
                positions[row, slot] = i
                slot += 1
            elif keys[i] == least and wanted > 0:
                positions[row, slot] = i
                slot += 1
                wanted -= 1


def _quantized(
    queries: Array, centroids: Array, codes: Array, scale: np.float32, softcap: np.float32, softmax: bool, add: bool,
    share: np.float32, cuts: int, logits: Array, scores: Array,
) -> None:  # fmt: skip
    """Tables of products per head; the tokens' logits, cut into parts of a row; then softmax and reduction per head."""
    batch, heads, members, length = logits.shape
    _, _, _, count, width = centroids.shape
    parts = codes.shape[3]
    tables = np.empty((batch, heads, parts, count, members), np.float32)
    for task in prange(batch * heads):
        b, h = task // heads, task % heads
        for part in range(parts):
            for code in range(count):
                centroid = centroids[b, h, part, code]
                for g in range(members):
                    query, product = queries[b, h, g, part], np.float32(0.0)
                    for d in range(width):
                        product += query[d] * centroid[d]
                    tables[b, h, part, code, g] = product * scale
    size = -(-length // cuts)
    for task in prange(batch * heads * cuts):
        b, h, cut = task // (heads * cuts), task // cuts % heads, task % cuts
        for token in range(min(cut * size, length), min((cut + 1) * size, length)):
            for g in range(members):
                logit = np.float32(0.0)
                for part in range(parts):
                    logit += tables[b, h, part, codes[b, h, token, part], g]
                logits[b, h, g, token] = softcap * np.float32(math.tanh(logit / softcap)) if softcap > 0 else logit
    for task in prange(batch * heads):
        b, h = task // heads, task % heads
        room = np.empty(length, np.int32)
        for g in range(members):
            row, factor = logits[b, h, g], share
            if softmax:
                factor = share / exponentials(row, peak_of(row), room)
            target = scores[b, h, g if scores.shape[2] > 1 else 0]
            for token in range(length):
                score = row[token] * factor
                if g == 0 or scores.shape[2] > 1:
                    target[token] = score
                elif add:
                    target[token] += score
                else:
                    target[token] = max(target[token], score)


def _pair_scores(
    queries: Array, centroids: Array, pairs: Array, counts: Array, scale: np.float32, add: bool, share: np.float32,
    cuts: int, exact: Array, scores: Array,
) -> None:  # fmt: skip
    """Weights of each pair of codes per head, which the tokens look up; see `quantized._cells` for the formula."""
    batch, heads, members, _, width = queries.shape
    length, count = pairs.shape[2], centroids.shape[3]
    cells = np.empty((batch, heads, count, CELLS), np.float32)
    for task in prange(batch * heads):
        b, h = task // heads, task % heads
        products, room = np.empty((2, members, count), np.float32), np.empty(count, np.int32)
        exact[b, h] = True
        cells[b, h, :, :count] = 0.0
        for g in range(members):
            for part in range(2):
                query, row = queries[b, h, g, part], products[part, g]
                for code in range(count):
                    centroid, product = centroids[b, h, part, code], np.float32(0.0)
                    for d in range(width):
                        product += query[d] * centroid[d]
                    row[code] = product * scale
                exponentials(row, peak_of(row), room)
            first, second, total = products[0, g], products[1, g], np.float32(0.0)
            for code in range(count):
                of_second, total_of_second = counts[b, h, code], np.float32(0.0)
                for other in range(count):
                    total_of_second += of_second[other] * first[other]
                total += total_of_second * second[code]
            exact[b, h] &= total >= LEAST_TOTAL
            factor = share / total if total >= LEAST_TOTAL else share
            for code in range(count):
                of_code, weight = cells[b, h, code], second[code] * factor
                if add:
                    for other in range(count):
                        of_code[other] += weight * first[other]
                else:
                    for other in range(count):
                        of_code[other] = max(of_code[other], weight * first[other])
    size = -(-length // cuts)
    for task in prange(batch * heads * cuts):
        b, h, cut = task // (heads * cuts), task // cuts % heads, task % cuts
        of_head, target = cells[b, h].ravel(), scores[b, h, 0]
        for token in range(min(cut * size, length), min((cut + 1) * size, length)):
            target[token] = of_head[pairs[b, h, token]]


_take = compiled(_best)
_score_pairs = compiled(_pair_scores)
_score = compiled(_quantized)
