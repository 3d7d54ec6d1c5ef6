"""Selection kernels in plain torch; on the CPU, NumPy counts and sorts.

A small operation takes 3 to 6 µs in torch and about 1 µs in NumPy (EPYC Zen 5, one thread), which reads a CPU tensor's
memory without a copy. Products with representatives and bounds are torch's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .quantized import pq_scores
from .shared import Chosen, group_scores

__all__ = ["page_scores", "pq_scores", "select_clusters", "take_best", "take_clusters"]

Array = NDArray[Any]

SAMPLE_STEP = 17  # one score of so many is in a sample; a prime, since pages and blocks are powers of 2
LEAST_SHARE, LEAST_SAMPLED = 4, 2048  # a sample saves time from so many times as many scores as wanted, and so many


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
) -> Chosen:
    """Tokens of the best clusters; see `kvviz_kernels.select_clusters`."""
    scores = group_scores(queries, centroids.float(), group)
    return take_clusters(scores, sizes, offsets, order, budget, details=details)


def take_clusters(
    scores: Tensor, sizes: Tensor, offsets: Tensor, order: Tensor, budget: int, *, details: bool = False
) -> Chosen:
    """Tokens of the best clusters by given scores; see `kvviz_kernels.take_clusters`."""
    if scores.is_cpu:
        return _take_clusters_on_cpu(scores, sizes, offsets, order, budget, details=details)
    batch, rows, _ = scores.shape
    sizes, offsets, order = (_rows_of_heads(tensor, rows) for tensor in (sizes, offsets, order))
    slots = torch.arange(min(budget, order.shape[-1]), device=scores.device).expand(batch, rows, -1).contiguous()
    ranked = scores.argsort(dim=-1, descending=True, stable=True)  # [B, R, C]
    ranked_sizes = sizes.gather(-1, ranked)
    ends = ranked_sizes.cumsum(-1)
    rank = torch.searchsorted(ends, slots, right=True)  # [B, R, S]
    shift = offsets.gather(-1, ranked) - (ends - ranked_sizes)  # from a slot to its place in `order`
    indices, permutation = order.gather(-1, shift.gather(-1, rank) + slots).sort(-1)
    if not details:
        return indices, None, None
    groups = ranked.gather(-1, rank).gather(-1, permutation)
    return indices, groups.to(torch.int32), scores.gather(-1, groups).float()


def _take_clusters_on_cpu(
    scores: Tensor, sizes: Tensor, offsets: Tensor, order: Tensor, budget: int, *, details: bool
) -> Chosen:
    batch, rows, count = scores.shape
    length = order.shape[-1]
    slots = min(budget, length)
    cluster_base, offset_base, place_base = _bases(batch, rows, sizes.shape[1], count, length, slots)
    ranked = (-_array(scores).reshape(-1, count)).argsort(axis=-1, kind="stable")  # [B·R, C]
    ranked_sizes = _array(sizes).ravel().take(ranked + cluster_base)
    ends = np.add.accumulate(ranked_sizes, axis=1)
    starts = ends - ranked_sizes
    counts = (np.minimum(ends, slots) - np.minimum(starts, slots)).ravel()  # tokens of each cluster, the last trimmed
    shift = _array(offsets).ravel().take(ranked + offset_base) - starts + place_base  # from a slot to its place
    places = shift.ravel().repeat(counts)
    places += _counting(len(places))
    positions = _array(order).ravel().take(places).reshape(batch * rows, slots)
    if not details:
        positions.sort(axis=-1)
        return torch.from_numpy(positions).view(batch, rows, slots), None, None
    permutation = torch.from_numpy(positions.argsort(axis=-1)).view(batch, rows, slots)
    groups = torch.from_numpy(ranked.ravel().repeat(counts)).view(batch, rows, slots).gather(-1, permutation)
    indices = torch.from_numpy(positions).view(batch, rows, slots).gather(-1, permutation)
    return indices, groups.to(torch.int32), scores.gather(-1, groups).float()


@lru_cache(maxsize=64)
def _bases(batch: int, rows: int, heads: int, count: int, length: int, slots: int) -> tuple[Array, Array, Array]:
    """Start of each row's sizes, offsets and tokens in the flat tensors, [B·R, 1]; the last minus the row's slots."""
    row = np.arange(batch * rows)[:, None]
    head = row // rows * heads + row % rows // (rows // heads)
    return head * count, head * (count + 1), head * length - row * slots


@lru_cache(maxsize=16)
def _counting(stop: int) -> Array:
    return np.arange(stop)


def take_best(scores: Tensor, count: int) -> Tensor:
    """Positions of the largest scores; see `kvviz_kernels.take_best`.

    Scores equal to the threshold are counted from the first. (A stable argsort of 3 x 8,192 scores takes 2.1 ms on an
    EPYC with 2 threads.)
    """
    batch, rows, length = scores.shape
    count = max(min(count, length), 0)
    if count == 0:
        return torch.empty((batch, rows, 0), dtype=torch.int64, device=scores.device)
    if scores.is_cpu:
        return torch.from_numpy(_best_on_cpu(_array(scores).reshape(-1, length), count)).view(batch, rows, count)
    least = scores.topk(count, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    chosen = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return chosen.nonzero()[:, -1].view(batch, rows, count)


def _best_on_cpu(scores: Array, count: int) -> Array:
    """Positions [rows, count] of the best scores of [rows, L], ascending."""
    rows, length = scores.shape
    found = _candidates(scores, count) if length >= max(LEAST_SHARE * count, LEAST_SAMPLED) else None
    if found is None:
        partitioned = scores.copy()
        partitioned.partition(length - count, axis=-1)
        least = partitioned[:, length - count]
        flat = (scores >= least[:, None]).ravel().nonzero()[0]  # flat positions, in order
    else:
        flat, least = found
    if len(flat) > rows * count:
        flat = _without_excess(flat, scores, least, count)
    positions: Array = flat.reshape(rows, count)
    positions -= _bases(1, rows, rows, length, length, 0)[2]
    return positions


def _candidates(scores: Array, count: int) -> tuple[Array, Array] | None:
    """Flat positions of the scores that reach their row's `count`-th largest, in order, and that score [rows].

    A sample bounds the score from below, so that only the few scores above the bound have to be partitioned: 72 µs
    where partitioning all takes 149 and torch.topk 274 (380 of 3 x 8,000, other scores at every call, EPYC with
    AVX-512). None if the sample misleads, so that a row has fewer scores above its bound.
    """
    rows, length = scores.shape
    sample = np.ascontiguousarray(scores[:, ::SAMPLE_STEP])
    expected = count / SAMPLE_STEP
    above = min(int(expected + 3.5 * expected**0.5) + 2, sample.shape[1])  # 3.5 standard deviations more
    sample.partition(sample.shape[1] - above, axis=-1)
    flat = (scores >= sample[:, -above, None]).ravel().nonzero()[0]
    ends = flat.searchsorted(_row_ends(rows, length))
    in_row = _steps(ends)
    if in_row.min() < count:
        return None
    values = scores.ravel().take(flat)
    least = np.empty(rows, scores.dtype)
    for row, end in enumerate(ends.tolist()):
        of_row = values[end - in_row[row] : end].copy()
        of_row.partition(len(of_row) - count)
        least[row] = of_row[-count]
    return flat[values >= least.repeat(in_row)], least


def _without_excess(flat: Array, scores: Array, least: Array, count: int) -> Array:
    """The flat positions without the last ones that tie with their row's threshold, if there are too many."""
    rows, length = scores.shape
    ends = flat.searchsorted(_row_ends(rows, length))  # of each row in `flat`
    in_row = _steps(ends)
    ties = (scores.ravel().take(flat) == least.repeat(in_row)).nonzero()[0]
    tie_ends = ties.searchsorted(ends)
    first_out = tie_ends - in_row + count  # among all ties, of each row
    fits = np.ones(len(flat), np.bool_)
    fits[ties[np.arange(len(ties)) >= first_out.repeat(_steps(tie_ends))]] = False
    return flat[fits]


def _steps(ends: Array) -> Array:
    """Differences, starting from 0, in 1 µs; np.diff(ends, prepend=0) takes 6 µs."""
    steps = ends.copy()
    steps[1:] -= ends[:-1]
    return steps


@lru_cache(maxsize=16)
def _row_ends(rows: int, length: int) -> Array:
    return np.arange(length, (rows + 1) * length, length)


def page_scores(queries: Tensor, bounds: Tensor, *, group: str) -> Tensor:
    """Upper bounds of the inner products of each page; see `kvviz_kernels.page_scores`."""
    batch, heads, both, pages = bounds.shape
    by_head = queries.reshape(batch * heads, -1, both // 2).float()  # [B·H, G, D]
    # The bound splits by the sign of q: positive channels use the page's maximum, negative ones its minimum.
    split = torch.cat([by_head.clamp(min=0), by_head.clamp(max=0)], dim=-1)
    if group in ("mean", "sum"):  # linear in the two parts
        split = split.mean(1, keepdim=True) if group == "mean" else split.sum(1, keepdim=True)
    scores = torch.bmm(split, bounds.reshape(batch * heads, both, pages).float())
    if group == "max":
        scores = scores.amax(1)
    return scores.reshape(batch, heads * (1 if group == "max" else split.shape[1]), pages)  # also without pages


def _rows_of_heads(tensor: Tensor, rows: int) -> Tensor:
    """A tensor per KV head [B, H, ...] repeated per selection head [B, R, ...]."""
    heads = tensor.shape[1]
    return tensor if rows == heads else tensor.repeat_interleave(rows // heads, dim=1)


def _array(tensor: Tensor) -> Array:
    """A CPU tensor's memory as an array; a copy only for bfloat16, which NumPy does not have."""
    array: Array = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
    return array
