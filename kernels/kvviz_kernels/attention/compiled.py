"""Attention over selected tokens, compiled for the CPU: keys and values are read where they are, and not copied.

Rows are cut into parts, each with its own maximum and sums, which are merged afterwards, as in Flash-Decoding.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..compiling import LOWEST, Array, array_of, exponentials, flat, join, kernel, parts_of, peak_of, run

NO_BIAS = np.empty((0, 0, 0), np.float32)
Strides = tuple[int, ...]


def gather_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
    padded: bool = True,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; see `kvviz_kernels.gather_attention`."""
    batch, heads, width = queries.shape
    rows, slots = indices.shape[1:]
    output, lse = np.empty((batch, heads, width), np.float32), np.empty((batch, heads), np.float32)
    sums = np.empty((batch, rows, parts_of(slots) or 1, heads // rows, width + 2), np.float32)
    run(
        _attend, indices.numel() * heads // rows * width,
        array_of(queries.float()), *flat(keys), *flat(values), keys.shape[1], array_of(indices),
        NO_BIAS if bias is None else array_of(bias.float().clamp(min=float(LOWEST))), scale, softcap or 0.0, sums,
        output, lse,
    )  # fmt: skip
    result = torch.from_numpy(output)
    return result if queries.dtype == torch.float32 else result.to(queries.dtype), torch.from_numpy(lse)


def gather_weights(
    queries: Tensor, keys: Tensor, indices: Tensor, *, scale: float, group: str, softcap: float | None = None
) -> Tensor:
    """Softmax weights; see `kvviz_kernels.gather_weights`."""
    batch, rows, slots = indices.shape
    members = queries.shape[1] // rows
    weights = np.empty((batch, rows, slots), np.float32)
    logits = np.empty((batch, rows, members, slots), np.float32)
    add, share = group in ("mean", "sum"), 1 / members if group == "mean" else 1.0
    if not weights.size:  # a maximum over no tokens would read beyond the row
        return torch.from_numpy(weights)
    run(
        _weigh, weights.size * members * queries.shape[2],
        array_of(queries.float()), *flat(keys), keys.shape[1], array_of(indices), scale, softcap or 0.0, add,
        share, parts_of(slots), logits, weights,
    )  # fmt: skip
    return torch.from_numpy(weights)


def _attention(
    queries: Array, keys: Array, key_steps: Strides, values: Array, value_steps: Strides, kv_heads: int,
    indices: Array, bias: Array, scale: float, softcap: float, sums: Array, output: Array, lse: Array,
) -> None:  # fmt: skip
    """One task per part of a row; then the parts of each row are merged.

    sums [B, R, parts, G, D+2] are the parts' weighted values, the largest logit, and the sum of the weights.
    """
    batch, rows, parts, members, columns = sums.shape
    width, slots = columns - 2, indices.shape[2]
    factor, limit = np.float32(scale), np.float32(softcap)
    size = -(-slots // parts)
    for task in prange(batch * rows * parts):
        b, r, part = task // (rows * parts), task // parts % rows, task % parts
        first, last = min(part * size, slots), min((part + 1) * size, slots)
        head = r // (rows // kv_heads)
        key_base = b * key_steps[0] + head * key_steps[1]
        value_base = b * value_steps[0] + head * value_steps[1]
        logits = np.full((members, max(last - first, 1)), LOWEST, np.float32)
        for slot in range(first, last):
            position = indices[b, r, slot]
            if position >= 0:
                start = key_base + position * key_steps[2]
                key = keys[start : start + width]  # indices from 0: with start + d the loop is not vectorized
                for g in range(members):
                    query, logit = queries[b, r * members + g], np.float32(0.0)
                    for d in range(width):
                        logit += query[d] * key[d]
                    logit *= factor
                    if limit > 0:
                        logit = limit * np.float32(math.tanh(logit / limit))
                    if bias.shape[0]:
                        logit += bias[b, r, slot]
                    logits[g, slot - first] = logit
        room = np.empty(logits.shape[1], np.int32)
        for g in range(members):
            of_part, peak = sums[b, r, part, g], peak_of(logits[g])
            of_part[:width] = 0.0
            of_part[width] = peak
            of_part[width + 1] = exponentials(logits[g], peak, room)
            if peak <= LOWEST / 2:  # no token, or none that the bias leaves
                of_part[width + 1], logits[g] = 0.0, 0.0
        for slot in range(first, last):
            position = indices[b, r, slot]
            if position >= 0:
                start = value_base + position * value_steps[2]
                value = values[start : start + width]
                for g in range(members):
                    weight, of_part = logits[g, slot - first], sums[b, r, part, g]
                    for d in range(width):
                        of_part[d] += weight * value[d]
    for row in range(batch * rows * members):
        b, r, g = row // (rows * members), row // members % rows, row % members
        of_row, peak, total = output[b, r * members + g], LOWEST, np.float32(0.0)
        for part in range(parts):
            peak = max(peak, sums[b, r, part, g, width])
        for d in range(width):  # an assignment to a slice would be a parallel loop of its own
            of_row[d] = 0.0
        for part in range(parts):
            of_part = sums[b, r, part, g]
            share = np.float32(math.exp(of_part[width] - peak))
            total += share * of_part[width + 1]
            for d in range(width):
                of_row[d] += share * of_part[d]
        if total > 0:
            for d in range(width):
                of_row[d] /= total
        lse[b, r * members + g] = peak + np.float32(math.log(total)) if total > 0 else -np.inf


def _weights(
    queries: Array, keys: Array, key_steps: Strides, kv_heads: int, indices: Array, scale: float, softcap: float,
    add: bool, share: float, parts: int, logits: Array, weights: Array,
) -> None:  # fmt: skip
    """One task per part of a row for the logits; then one per row for the softmax of each query and the reduction."""
    batch, rows, members, slots = logits.shape
    width, factor, limit = queries.shape[2], np.float32(scale), np.float32(softcap)
    size = -(-slots // parts)
    for task in prange(batch * rows * parts):
        b, r, part = task // (rows * parts), task // parts % rows, task % parts
        base = b * key_steps[0] + r // (rows // kv_heads) * key_steps[1]
        for slot in range(min(part * size, slots), min((part + 1) * size, slots)):
            position = indices[b, r, slot]
            start = base + max(position, 0) * key_steps[2]
            key = keys[start : start + width]
            for g in range(members):
                logits[b, r, g, slot] = LOWEST
                if position >= 0:
                    query, logit = queries[b, r * members + g], np.float32(0.0)
                    for d in range(width):
                        logit += query[d] * key[d]
                    logit *= factor
                    logits[b, r, g, slot] = limit * np.float32(math.tanh(logit / limit)) if limit > 0 else logit
    for row in prange(batch * rows):
        b, r = row // rows, row % rows
        room = np.empty(slots, np.int32)
        target = weights[b, r]
        for g in range(members):
            of_query = logits[b, r, g]
            part_of_total = np.float32(share) / exponentials(of_query, peak_of(of_query), room)
            join(target, of_query, part_of_total, g == 0, add)
        for slot in range(slots):
            if indices[b, r, slot] < 0:
                target[slot] = np.float32(-1.0)


_attend = kernel(_attention)
_weigh = kernel(_weights)
