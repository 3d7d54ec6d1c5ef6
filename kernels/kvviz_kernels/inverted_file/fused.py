"""Lists of query centroids in Triton: no matrix of logits in memory, and a radix selection of the best weights."""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import tensor  # annotations of kernels must be names that Triton knows, unlike typing.Any

from ..tuning import Config, best_config

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
BLOCK_ELEMENTS = 2**26  # reduced weights per block: 256 MiB of float32, at least one centroid
BLOCK_SCAN = 2048
DEFAULT: Config = {"block_queries": 64, "block_keys": 64, "num_warps": 4}
CANDIDATES: list[Config] = [
    {"block_queries": queries, "block_keys": keys, "num_warps": warps}
    for queries, keys, warps in [(64, 32, 4), (64, 64, 4), (64, 128, 4), (128, 64, 8), (128, 128, 8), (128, 256, 8)]
]


def _soften(logits: tensor, scale: tensor, softcap: tensor, HAS_SOFTCAP: tl.constexpr) -> tensor:
    """Scaled logits, limited by a tanh if the model does so."""
    logits = logits * scale
    if HAS_SOFTCAP:
        logits = softcap * (2.0 * tl.sigmoid(2.0 * logits / softcap) - 1.0)  # tanh
    return logits


_softened = triton.jit(_soften)


def _normalise(
    centroids: tensor, keys: tensor, last: tensor, lse: tensor, scale: tensor, softcap: tensor,
    queries: tensor, n_centroids: tensor, length: tensor, key_row: tensor, key_token: tensor, key_element: tensor,
    D: tl.constexpr, CAUSAL: tl.constexpr, HAS_SOFTCAP: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per block of centroids of one KV head: the log-sum-exp of each over all keys."""
    row = tl.program_id(1).to(tl.int64)
    centroid = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)  # of G * C
    dims = tl.arange(0, BLOCK_D)
    place = (row * queries + centroid[:, None]) * D + dims[None, :]
    query = tl.load(centroids + place, mask=(centroid[:, None] < queries) & (dims[None, :] < D), other=0.0)
    limit = tl.zeros([BLOCK_Q], tl.int64) + length - 1
    if CAUSAL:
        limit = tl.load(last + centroid % n_centroids)
    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    for start in range(0, length, BLOCK_K):
        token = start + tl.arange(0, BLOCK_K)
        key_place = row * key_row + token[None, :].to(tl.int64) * key_token + dims[:, None] * key_element
        key = tl.load(keys + key_place, mask=(token[None, :] < length) & (dims[:, None] < D), other=0.0)
        logits = _softened(tl.dot(query, key, input_precision="ieee"), scale, softcap, HAS_SOFTCAP)
        logits = tl.where(token[None, :] <= limit[:, None], logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1))  # finite from the first block on: each query attends to key 0
        total = total * tl.exp(peak - new_peak) + tl.sum(tl.exp(logits - new_peak[:, None]), 1)
        peak = new_peak
    tl.store(lse + row * queries + centroid, peak + tl.log(total), mask=centroid < queries)


def _weigh(
    centroids: tensor, keys: tensor, last: tensor, lse: tensor, weights: tensor, scale: tensor, softcap: tensor,
    first: tensor, some: tensor, n_centroids: tensor, start: tensor, places: tensor,
    key_row: tensor, key_token: tensor, key_element: tensor,
    ROWS_OF_HEAD: tl.constexpr, GROUP: tl.constexpr, REDUCTION: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
) -> None:  # fmt: skip
    """One program per (block of keys, block of centroids, row of lists): weights reduced over the row's query heads."""
    row = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)  # of the keys that may be listed
    centroid = tl.program_id(1) * BLOCK_Q + tl.arange(0, BLOCK_Q)  # of the centroids of this block
    dims = tl.arange(0, BLOCK_D)
    token = (start + place).to(tl.int64)
    key_place = row // ROWS_OF_HEAD * key_row + token[None, :] * key_token + dims[:, None] * key_element
    key = tl.load(keys + key_place, mask=(place[None, :] < places) & (dims[:, None] < D), other=0.0)
    reduced = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    for member in range(GROUP):
        query_row = (row * GROUP + member) * n_centroids + first + centroid
        inside = (centroid[:, None] < some) & (dims[None, :] < D)
        query = tl.load(centroids + query_row[:, None] * D + dims[None, :], mask=inside, other=0.0)
        logits = _softened(tl.dot(query, key, input_precision="ieee"), scale, softcap, HAS_SOFTCAP)
        normaliser = tl.load(lse + query_row, mask=centroid < some, other=0.0)
        weight = tl.exp(logits - normaliser[:, None])
        reduced = tl.maximum(reduced, weight) if REDUCTION == "max" else reduced + weight
    if REDUCTION == "mean":
        reduced = tl.div_rn(reduced, tl.full([BLOCK_Q, BLOCK_K], GROUP, tl.float32))
    if CAUSAL:
        limit = tl.load(last + first + centroid, mask=centroid < some, other=0)
        reduced = tl.where(token[None, :] <= limit[:, None], reduced, -1.0)
    out = (row * some + centroid[:, None]) * places + place[None, :]
    tl.store(weights + out, reduced, mask=(centroid[:, None] < some) & (place[None, :] < places))


def _narrow(
    weights: tensor,
    places: tensor,
    least: tensor,
    wanted: tensor,
    SHIFT: tl.constexpr,
    ABOVE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tensor:
    """The bits from SHIFT to ABOVE of the smallest selected weight, added to `least`, and how many to select with them.

    A histogram of these bits, over the weights with the same higher bits, gives the bin of that weight.
    """
    lane, bins = tl.arange(0, BLOCK), tl.arange(0, 256)
    histogram = tl.zeros([256], tl.int32)
    for start in range(0, places, BLOCK):
        bits = tl.load(weights + start + lane, mask=start + lane < places, other=-1.0).to(tl.int32, bitcast=True)
        rival = (bits >= 0) & ((bits >> ABOVE) == (least >> ABOVE))
        # Other weights go to bin 0, whose count does not matter: it is chosen if no other bin is.
        histogram += tl.histogram(tl.where(rival, (bits >> SHIFT) & ((1 << (ABOVE - SHIFT)) - 1), 0), 256)
    reaching = tl.cumsum(histogram, 0, reverse=True)
    bin_of_last = tl.sum(((bins > 0) & (reaching >= wanted)).to(tl.int32), 0)
    return least + (bin_of_last << SHIFT), wanted - tl.sum(tl.where(bins > bin_of_last, histogram, 0), 0)


_narrowed = triton.jit(_narrow)


def _select(weights: tensor, best: tensor, slots: tensor, places: tensor, count: tensor, BLOCK: tl.constexpr) -> None:
    """One program per row of weights: its `count` largest in the order of their places; ties go to the earlier one.

    The bits of non-negative floats sort as the floats do: 31 bits, decided eight at a time. Negative weights are never
    selected.
    """
    row = tl.program_id(0).to(tl.int64)
    lane, row_weights = tl.arange(0, BLOCK), weights + row * places
    least = tl.zeros([1], tl.int32)  # the known bits of the smallest selected weight
    wanted = tl.zeros([1], tl.int32) + count  # how many weights with these bits to select
    least, wanted = _narrowed(row_weights, places, least, wanted, 23, 31, BLOCK)
    least, wanted = _narrowed(row_weights, places, least, wanted, 15, 23, BLOCK)
    least, wanted = _narrowed(row_weights, places, least, wanted, 7, 15, BLOCK)
    least, wanted = _narrowed(row_weights, places, least, wanted, 0, 7, BLOCK)
    taken = tl.zeros([1], tl.int32)
    equal_before = tl.zeros([1], tl.int32)
    for start in range(0, places, BLOCK):
        weight = tl.load(row_weights + start + lane, mask=start + lane < places, other=-1.0)
        bits = weight.to(tl.int32, bitcast=True)
        equal = (bits == least).to(tl.int32)
        chosen = (bits > least) | ((equal == 1) & (equal_before + tl.cumsum(equal, 0) <= wanted))
        slot = taken + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(best + row * count + slot, weight, mask=chosen)
        tl.store(slots + row * count + slot, start + lane, mask=chosen)
        taken += tl.sum(chosen.to(tl.int32), 0)
        equal_before += tl.sum(equal, 0)
    for start in range(0, count, BLOCK):
        pad = (start + lane >= taken) & (start + lane < count)
        tl.store(best + row * count + start + lane, tl.full([BLOCK], -1.0, tl.float32), mask=pad)
        tl.store(slots + row * count + start + lane, tl.zeros([BLOCK], tl.int32), mask=pad)


# not decorators, so that type checkers without Triton see the functions
_normalise_kernel = triton.jit(_normalise)
_weigh_kernel = triton.jit(_weigh)
_select_kernel = triton.jit(_select)


def ivf_lists(
    centroids: Tensor,
    keys: Tensor,
    list_length: int,
    *,
    scale: float,
    group: str,
    softcap: float | None,
    within: tuple[int, int],
    last: Tensor | None,
    config: Config | None = None,
) -> Tensor:
    """Lists of keys; see `kvviz_kernels.ivf_lists`."""
    (heads, length, width), count = keys.shape[-3:], centroids.shape[-2]
    ratio, places = centroids.shape[-3] // heads, within[1] - within[0]
    # The interpreter would multiply the bits of bfloat16.
    dtype = torch.float32 if INTERPRETED else torch.promote_types(centroids.dtype, keys.dtype)
    flat_keys = keys.reshape(-1, length, width).to(dtype)  # [B * H, L, D]
    flat_centroids = centroids.reshape(len(flat_keys), ratio * count, width).to(dtype).contiguous()
    chosen = config or best_config("ivf_lists", keys.device, DEFAULT)
    queries, block_keys = chosen["block_queries"], chosen["block_keys"]
    shared = {
        "D": width, "CAUSAL": last is not None, "HAS_SOFTCAP": softcap is not None, "BLOCK_Q": queries,
        "BLOCK_K": block_keys, "BLOCK_D": max(16, triton.next_power_of_2(width)), "num_warps": chosen["num_warps"],
    }  # fmt: skip
    lse = torch.empty(flat_centroids.shape[:2], dtype=torch.float32, device=keys.device)
    inputs = flat_centroids, flat_keys, lse if last is None else last.contiguous()
    cap = 1.0 if softcap is None else softcap
    _normalise_kernel[(triton.cdiv(ratio * count, queries), len(flat_keys))](
        *inputs, lse, scale, cap, ratio * count, count, length, *flat_keys.stride(), **shared
    )
    rows_of_head = ratio if group == "each" else 1
    rows = len(flat_keys) * rows_of_head
    block = min(count, max(1, BLOCK_ELEMENTS // (rows * places)))
    weights = torch.empty(rows * block * places, dtype=torch.float32, device=keys.device)
    lists = torch.empty(rows, count, list_length, dtype=torch.int32, device=keys.device)
    for first in range(0, count, block):
        some = min(block, count - first)
        _weigh_kernel[(triton.cdiv(places, block_keys), triton.cdiv(some, queries), rows)](
            *inputs, lse, weights, scale, cap, first, some, count, within[0], places, *flat_keys.stride(),
            ROWS_OF_HEAD=rows_of_head, GROUP=ratio // rows_of_head, REDUCTION=group, **shared,
        )  # fmt: skip
        lists[:, first : first + some] = _best(weights, rows * some, places, list_length, within[0]).view(
            rows, some, list_length
        )
    return lists.view(*keys.shape[:-3], heads * rows_of_head, count, list_length)


def _best(weights: Tensor, rows: int, places: int, count: int, start: int) -> Tensor:
    """Positions int32 [rows, count] of each row's largest weights, the largest first, padded with -1."""
    best = torch.empty(rows, count, dtype=torch.float32, device=weights.device)
    slots = torch.empty(rows, count, dtype=torch.int32, device=weights.device)
    _select_kernel[(rows,)](weights, best, slots, places, count, BLOCK=BLOCK_SCAN)
    ordered, order = torch.sort(best, dim=-1, descending=True, stable=True)
    return torch.where(ordered < 0, -1, slots.gather(-1, order) + start)
