"""Attention over selected tokens, compiled for the CPU: keys and values are read where they are, and not copied.

Rows are cut into parts, each with its own maximum and sums, which are merged afterwards, as in Flash-Decoding.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..compiling import LOWEST, Array, compiled, exponentials, flat, parts_of, peak_of, run

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
    parts = max(parts_of(slots), 1)
    output, lse = torch.empty(batch, heads, width), torch.empty(batch, heads)
    sums = np.empty((batch, rows, parts, heads // rows, width), np.float32)
    peaks, totals = np.empty(sums.shape[:-1], np.float32), np.empty(sums.shape[:-1], np.float32)
    run(
        _attend, _by_row(queries, rows), *flat(keys), *flat(values), keys.shape[1], _array(indices), _added(bias),
        np.float32(scale), np.float32(softcap or 0), sums, peaks, totals,
        output.numpy().reshape(batch, rows, -1, width), lse.numpy().reshape(batch, rows, -1),
    )  # fmt: skip
    return output.to(queries.dtype), lse


def gather_weights(
    queries: Tensor, keys: Tensor, indices: Tensor, *, scale: float, group: str, softcap: float | None = None
) -> Tensor:
    """Softmax weights; see `kvviz_kernels.gather_weights`."""
    batch, heads, _ = queries.shape
    rows, slots = indices.shape[1:]
    weights = torch.empty(batch, rows, slots)
    logits = np.empty((batch, rows, heads // rows, slots), np.float32)
    shared = 1.0 if group != "mean" else rows / heads
    run(
        _weigh, _by_row(queries, rows), *flat(keys), keys.shape[1], _array(indices), np.float32(scale),
        np.float32(softcap or 0), group in ("mean", "sum"), np.float32(shared), max(parts_of(slots), 1), logits,
        weights.numpy(),
    )  # fmt: skip
    return weights


def _by_row(queries: Tensor, rows: int) -> Array:
    """Queries [B, Q, D] as a dense array [B, R, G, D]."""
    dense = queries.detach().float().contiguous()
    return dense.numpy().reshape(len(dense), rows, -1, dense.shape[-1])


def _array(indices: Tensor) -> Array:
    return np.ascontiguousarray(indices.numpy(), dtype=np.int64)


def _added(bias: Tensor | None) -> Array:
    """The bias without infinities; without a bias, an array without entries."""
    if bias is None:
        return np.empty((0, 0, 0), np.float32)
    return np.ascontiguousarray(bias.detach().float().clamp(min=float(LOWEST)).numpy())


def _attention(
    queries: Array, keys: Array, key_steps: Strides, values: Array, value_steps: Strides, kv_heads: int,
    indices: Array, bias: Array, scale: np.float32, softcap: np.float32, sums: Array, peaks: Array, totals: Array,
    output: Array, lse: Array,
) -> None:  # fmt: skip
    """One task per part of a row; then one per row, which merges its parts."""
    batch, rows, parts, members, width = sums.shape
    slots = indices.shape[2]
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
                    logit = np.float32(0.0)
                    query = queries[b, r, g]
                    for d in range(width):
                        logit += query[d] * key[d]
                    logit *= scale
                    if softcap > 0:
                        logit = softcap * np.float32(math.tanh(logit / softcap))
                    if bias.shape[0]:
                        logit += bias[b, r, slot]
                    logits[g, slot - first] = logit
        room = np.empty(logits.shape[1], np.int32)
        for g in range(members):
            peak = peak_of(logits[g])
            peaks[b, r, part, g] = peak
            totals[b, r, part, g] = exponentials(logits[g], peak, room)
            if peak <= LOWEST / 2:  # no token, or none that the bias leaves
                totals[b, r, part, g], logits[g] = 0.0, 0.0
            sums[b, r, part, g] = 0.0
        for slot in range(first, last):
            position = indices[b, r, slot]
            if position >= 0:
                start = value_base + position * value_steps[2]
                value = values[start : start + width]
                for g in range(members):
                    weight, total = logits[g, slot - first], sums[b, r, part, g]
                    for d in range(width):
                        total[d] += weight * value[d]
    for b in range(batch):
        for r in range(rows):
            for g in range(members):
                peak = LOWEST
                for part in range(parts):
                    peak = max(peak, peaks[b, r, part, g])
                total = np.float32(0.0)
                for part in range(parts):
                    share = np.float32(math.exp(peaks[b, r, part, g] - peak))
                    total += share * totals[b, r, part, g]
                    peaks[b, r, part, g] = share
                for d in range(width):
                    mean = np.float32(0.0)
                    for part in range(parts):
                        mean += peaks[b, r, part, g] * sums[b, r, part, g, d]
                    output[b, r, g, d] = mean / total if total > 0 else np.float32(0.0)
                lse[b, r, g] = peak + np.float32(math.log(total)) if total > 0 else -np.inf


def _weights(
    queries: Array, keys: Array, key_steps: Strides, kv_heads: int, indices: Array, scale: np.float32,
    softcap: np.float32, sums: bool, share: np.float32, parts: int, logits: Array, weights: Array,
) -> None:  # fmt: skip
    """One task per part of a row for the logits; then one per row for the softmax of each query and the reduction."""
    batch, rows, members, slots = logits.shape
    width = queries.shape[3]
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
                    logit = np.float32(0.0)
                    query = queries[b, r, g]
                    for d in range(width):
                        logit += query[d] * key[d]
                    logit *= scale
                    logits[b, r, g, slot] = softcap * np.float32(math.tanh(logit / softcap)) if softcap > 0 else logit
    for row in prange(batch * rows):
        b, r = row // rows, row % rows
        room = np.empty(slots, np.int32)
        for g in range(members):
            total = exponentials(logits[b, r, g], peak_of(logits[b, r, g]), room)
            factor = share / total
            for slot in range(slots):
                weight = logits[b, r, g, slot] * factor
                if g == 0:
                    weights[b, r, slot] = weight
                elif sums:
                    weights[b, r, slot] += weight
                else:
                    weights[b, r, slot] = max(weights[b, r, slot], weight)
        for slot in range(slots):
            if indices[b, r, slot] < 0:
                weights[b, r, slot] = np.float32(-1.0)


_attend = compiled(_attention)
_weigh = compiled(_weights)
