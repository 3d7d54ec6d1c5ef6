"""Scores of product-quantized keys in plain torch: a table of products with the centroids, looked up by codes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..softcap import softcap_
from .shared import reduce_group

CELLS = 256  # values of a byte: a pair of byte codes, read as one number, is first + 256 · second
LEAST_TOTAL = 1e-12  # minimum sum of the shifted weights; below it, the shift loses too much precision


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
    heads = centroids.shape[1]
    linear = scale is None and group in ("mean", "sum")
    tables = part_tables(queries, centroids, group if linear else "each")  # [B, H, G or 1, m, C]
    if (softcap is None or scale is None) and pairs_pay(centroids, codes):
        cells = _cells(tables, codes, group, scale, counts)
        if cells is not None:
            return _look_up_cells(cells, codes)
    scores = look_up(tables, codes)  # [B, H, G or 1, L]
    if linear:
        return scores.squeeze(2)
    if scale is not None:
        scores *= scale
        softcap_(scores, softcap)
        scores = scores.softmax(-1)
    return reduce_group(scores.flatten(1, 2), heads, group)


@lru_cache(maxsize=16)
def _weights_of_codes(count: int) -> NDArray[Any]:
    return np.array([1, count])


@lru_cache(maxsize=16)
def _first_cells(stop: int, step: int) -> NDArray[Any]:
    return np.arange(0, stop, step)[:, None]


def part_tables(queries: Tensor, centroids: Tensor, group: str) -> Tensor:
    """Inner products of each part of queries [B, Q, D] with its centroids [B, H, m, C, D/m]: float32 [B, H, G, m, C].

    If `group` is "mean" or "sum", a group's queries are first reduced to one.
    """
    batch, heads, parts, count, width = centroids.shape
    by_head = queries.reshape(batch * heads, -1, parts, width).float()
    if group in ("mean", "sum"):
        by_head = by_head.mean(1, keepdim=True) if group == "mean" else by_head.sum(1, keepdim=True)
    members = by_head.shape[1]
    split = by_head.transpose(1, 2).reshape(-1, members, width)  # [B·H·m, G, D/m]
    products = torch.bmm(split, centroids.reshape(-1, count, width).transpose(1, 2))  # [B·H·m, G, C]
    return products.view(batch, heads, parts, members, count).transpose(2, 3)


def look_up(tables: Tensor, codes: Tensor) -> Tensor:
    """Sums over the parts of tables [B, H, G, m, C] at codes [B, H, L, m]: float32 [B, H, G, L]."""
    of_part = codes.transpose(-1, -2).long()  # [B, H, m, L]
    total = tables.new_zeros((*tables.shape[:3], codes.shape[2]))
    for part in range(codes.shape[-1]):
        total += tables[..., part, :].gather(-1, of_part[:, :, None, part].expand(total.shape))
    return total


def pairs_pay(centroids: Tensor, codes: Tensor) -> bool:
    """Whether it pays on the CPU to score pairs of codes and look those up: two byte codes, few pairs, many tokens.

    centroids [..., m, C, D/m], codes [..., L, m].
    """
    count = centroids.shape[-2]
    as_pairs = codes.shape[-1] == 2 and codes.dtype == torch.uint8 and codes.stride(-1) == 1
    return codes.is_cpu and as_pairs and count * count <= codes.shape[-2]


def pair_cells(codes: Tensor, count: int) -> NDArray[Any]:
    """Place of each token of byte codes [..., n, 2] in the flattened counts [..., C, C], int64 [n, heads]."""
    by_head = codes.numpy().reshape(-1, codes.shape[-2], 2)
    cells = by_head @ _weights_of_codes(count)
    cells += _first_cells(len(by_head) * count * count, count * count)
    return np.ascontiguousarray(cells.T)


def count_pairs(counts: Tensor, cells: NDArray[Any]) -> None:
    """Add tokens to counts float32 [..., C, C] (second code, first code); `cells` [n, heads] from `pair_cells`.

    Integers up to 2^24 are exact in float32.
    """
    flat = counts.numpy().reshape(-1)
    if len(cells) == 1:  # one cell per head: no duplicates
        flat[cells[0]] += 1
    else:
        np.add.at(flat, cells, np.float32(1.0))


def _cells(
    tables: Tensor, codes: Tensor, group: str, scale: float | None, counts: Tensor | None
) -> NDArray[Any] | None:
    """Scores of each pair of codes, [B, R, C, 256], the second code first; only C of 256 are written.

    With `scale`, a weight is exp(first) · exp(second) / total, and their mean over the group is a product of two small
    matrices; the total is a sum over pairs, weighted by their counts. None if the total is too small: the shift by the
    largest entry of each part, which no token may have, then loses precision.
    """
    batch, heads, members, _, count = tables.shape
    parts = tables.numpy().reshape(batch * heads, members, 2, count)
    first, second = parts[:, :, 0], parts[:, :, 1]  # [B·H, G, C]
    rows = members if group == "each" else 1
    cells = np.empty((batch * heads, rows, count, CELLS), np.float32)
    inside = cells[..., :count]
    if scale is None:
        pairs = second[..., None] + first[..., None, :]  # [B·H, G, C, C]
    else:
        weights = parts * np.float32(scale)
        weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        first, second = weights[:, :, 0], weights[:, :, 1]
        if counts is None:
            counts = torch.zeros(batch, heads, count, count)
            count_pairs(counts, pair_cells(codes, count))
        of_second = first @ counts.numpy().reshape(-1, count, count).swapaxes(1, 2)  # [B·H, G, C]
        total = (of_second * second).sum(-1)
        if total.min() < LEAST_TOTAL:
            return None
        if group == "mean":
            total *= members
        second = second / total[..., None]
        if group in ("mean", "sum"):  # contiguous factors: 2 µs, where a transposed view takes 7
            np.matmul(np.ascontiguousarray(second.swapaxes(1, 2)), first, out=inside[:, 0])
            return cells.reshape(batch, heads, count, CELLS)
        pairs = second[..., None] * first[..., None, :]
    inside[:] = pairs if group == "each" else pairs.max(1, keepdims=True)
    return cells.reshape(batch, heads * rows, count, CELLS)


def _look_up_cells(cells: NDArray[Any], codes: Tensor) -> Tensor:
    batch, rows = cells.shape[:2]
    heads, length = codes.shape[1:3]
    pairs = torch.from_numpy(codes.numpy().view("<u2")[..., 0].astype(np.int64))  # [B, H, L]
    if rows != heads:
        pairs = pairs[:, :, None].expand(-1, -1, rows // heads, -1).reshape(batch, rows, length)
    return torch.from_numpy(cells).view(batch, rows, -1).gather(-1, pairs)
