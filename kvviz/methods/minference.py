"""MInference: sparse prefill over a few columns and diagonals of the score matrix; decode steps are dense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..trace.styles import Style
from .base import LayerContext
from .capabilities import SparsePrefill
from .fields import number, whole
from .full import Full

BLOCK = 64  # number of queries that share one list of keys, as in the published kernel


class Pattern:
    """A vertical-slash pattern: the keys to which each of a prompt's last `new` tokens attends.

    `columns` [B, Q, L] is True for keys to which all later queries attend. `diagonals` [B, Q, L] is True for distances
    from a query back to a key to which all queries attend.
    """

    def __init__(self, columns: Tensor, diagonals: Tensor, new: int) -> None:
        self.columns, self.diagonals, self.new = columns, diagonals, new
        self._counts = diagonals.cumsum(-1, dtype=torch.int32)  # number of diagonals up to each distance
        self._windows = pad(diagonals.flatten(0, 1), (BLOCK - 1, BLOCK - 1)).unfold(-1, BLOCK, 1)

    @property
    def blocks(self) -> Iterator[tuple[int, int]]:
        """Start and stop positions of each block of queries."""
        length = self.columns.shape[-1]
        for start in range(length - self.new, length, BLOCK):
            yield start, min(start + BLOCK, length)

    def touched(self, start: int, stop: int) -> Tensor:
        """Mask [B, Q, stop] of the keys to which any query from `start` to `stop` attends."""
        # Key c is on the diagonal of some query if any distance from start - c to stop - 1 - c is a diagonal.
        up_to_last = self._counts[..., :stop].flip(-1)
        before_first = pad(self._counts[..., :start].flip(-1), (0, stop - start))
        return self.columns[..., :stop] | (up_to_last > before_first)

    def attended(self, start: int, stop: int, keys: Tensor) -> Tensor:
        """Mask [B, Q, n, C] of which queries from `start` to `stop` attend to which of these keys [B, Q, C]."""
        heads = torch.arange(len(self._windows), device=keys.device)[:, None]
        # A key's distances from the block's queries are consecutive: one window of the diagonals.
        rows = self._windows[heads, start - keys.flatten(0, 1) + BLOCK - 1]  # [B * Q, C, BLOCK]
        on_diagonal = rows[..., : stop - start].transpose(-1, -2).view(*keys.shape[:2], stop - start, -1)
        causal = keys[:, :, None] <= torch.arange(start, stop, device=keys.device)[:, None]
        return on_diagonal | (self.columns.gather(-1, keys)[:, :, None] & causal)


@dataclass
class MInference(SparsePrefill, Full):
    """Sparse prefill with the vertical-slash pattern; decode steps attend to all tokens.

    Source: MInference 1.0 (arXiv 2407.02490), section 3 and algorithm 2. The exact attention of the last `last_queries`
    queries of a prompt (or of each chunk of it) is summed over these queries; each query head keeps the `vertical` keys
    and the `slash` distances back with the largest sums. The first `sinks` keys and the last `recent` distances are
    always among them. Each query then attends exactly to the keys on these columns and diagonals up to its own token.
    Only the keys needed by a block of 64 queries are scored, so the full score matrix is never computed.

    `vertical` = 1000, `slash` = 6096, 30 sinks and 100 recent distances are those of the published code for heads
    without a profile, chosen for 128k contexts. To make shorter prompts sparse too, at most the share `vertical_share`
    of the keys are columns and `slash_share` of the distances diagonals; "official" does not have these two limits, so
    up to 6,096 tokens it is dense. At a few thousand tokens diagonals cost more than columns: for an isolated diagonal,
    a block of 64 queries scores 127 keys. Prompts of up to `dense_length` tokens are dense, as there is little to save.

    Deviations: all heads use this pattern, while the paper searches for one of three patterns per head beforehand
    (section 3.2). The published kernel attends to all keys of the blocks that a diagonal touches; here keys next to the
    diagonal are not part of the softmax.

    Measured on SmolLM2-135M, 4,096 and 8,192 tokens of Python's reference: 34 % and 36 % of the scores computed, mean
    relative output error of a layer 0.11 and 0.14. In plain torch on a CPU it takes about as long as fused dense
    attention, because gathering keys costs the time that it saves in products.

    Use it as a method, or as `prefill="minference"` together with another method. The budget has no effect.
    """

    name = "minference"
    title = "MInference"
    paper = "arXiv 2407.02490"
    style = Style(dash="solid", symbol="hexagon-open")
    kind = "prefill"
    presets = {
        "paper": {},
        "official": {"vertical_share": 1.0, "slash_share": 1.0},
    }

    sinks: int = 30
    recent: int = 100
    vertical: int = whole(1000, 1)
    slash: int = whole(6096, 1)
    vertical_share: float = number(0.25, 0, 1)
    slash_share: float = number(0.03125, 0, 1)
    last_queries: int = whole(64, 1)
    dense_length: int = whole(512, 0)

    @property
    def reserved(self) -> int:
        """0: the budget has no effect."""
        return 0

    def attend_prompt(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention output [B, Q, n, D] of a prompt's last n tokens over the pattern's keys, in the queries' dtype.

        Apart from the output, memory grows with L, not with n · L.
        """
        output = torch.empty_like(queries)
        if queries.shape[2] == 0:  # a chunk that is all padding
            return output
        pattern = self.pattern(layer, queries, keys)
        first = keys.shape[2] - queries.shape[2]
        for start, stop in pattern.blocks:
            block = slice(start - first, stop - first)
            chosen, valid = _listed(pattern.touched(start, stop))  # [B, Q, C]
            products = queries[:, :, block] @ _gathered(keys, chosen).mT  # [B, Q, n, C]
            mask = pattern.attended(start, stop, chosen) & valid[:, :, None]
            weights = layer.logits(products.float()).masked_fill_(~mask, -torch.inf).softmax(-1)
            output[:, :, block] = weights.to(values.dtype) @ _gathered(values, chosen)
        return output

    def pattern(self, layer: LayerContext, queries: Tensor, keys: Tensor) -> Pattern:
        """The pattern for queries [B, Q, n, D], which belong to the last n of the keys [B, H, L, D]."""
        length, new = keys.shape[2], queries.shape[2]
        if length <= self.dense_length:
            dense = torch.ones((*queries.shape[:2], length), dtype=torch.bool, device=keys.device)
            return Pattern(dense, dense, new)
        count = min(self.last_queries, new)
        repeated = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
        logits = layer.logits((queries[:, :, new - count :] @ repeated.mT).float())  # [B, Q, count, L]
        places = torch.arange(length, device=keys.device)
        distances = places[length - count :, None] - places  # from each query back to each key; negative: a later key
        weights = logits.masked_fill_(distances < 0, -torch.inf).softmax(-1)
        # Each row reversed from its own token: entry d becomes the weight at distance d.
        by_distance = weights.gather(-1, distances.clamp(min=0).expand_as(weights)).masked_fill_(distances < 0, 0)
        vertical = min(self.vertical, math.ceil(self.vertical_share * length))
        slash = min(self.slash, math.ceil(self.slash_share * length))
        columns = _largest(weights.sum(-2), self.sinks, vertical)
        diagonals = _largest(by_distance.sum(-2), max(self.recent, 1), slash)
        return Pattern(columns, diagonals, new)

    def computed_share(self, layer: LayerContext, queries: Tensor, keys: Tensor) -> float:
        """Scores that `attend_prompt` computes, including the estimate, as a share of those of causal attention.

        It can exceed 1 if the pattern is nearly dense: the masked corner of each block counts, and so does padding,
        since every head computes as many scores as the head with the most.
        """
        length, new = keys.shape[2], queries.shape[2]
        pattern = self.pattern(layer, queries, keys)
        computed = 0 if length <= self.dense_length else min(self.last_queries, new) * length
        for start, stop in pattern.blocks:
            computed += (stop - start) * int(pattern.touched(start, stop).sum(-1).max())
        return computed / (new * (length - new) + new * (new + 1) // 2)


def _largest(sums: Tensor, always: int, count: int) -> Tensor:
    """Mask of the `count` largest of sums [B, Q, L], which include the first `always`; ties go to the earlier one."""
    sums = sums.clone()
    sums[..., :always] = torch.inf
    kept = sums.argsort(dim=-1, descending=True, stable=True)[..., : max(always, count)]
    return torch.zeros_like(sums, dtype=torch.bool).scatter_(-1, kept, True)


def _listed(touched: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending positions [B, Q, C] of the True values in touched [B, Q, L], and the mask of those not padding."""
    counts = touched.sum(-1)
    width = int(counts.max())
    slots = torch.where(touched, touched.cumsum(-1) - 1, width)  # False values go into a slot that is cut off below
    places = torch.arange(touched.shape[-1], device=touched.device).expand_as(touched)
    listed = places.new_zeros((*counts.shape, width + 1)).scatter_(-1, slots, places)[..., :width]
    return listed, torch.arange(width, device=touched.device) < counts[..., None]


def _gathered(tensor: Tensor, chosen: Tensor) -> Tensor:
    """Rows [B, Q, C, D] of a tensor [B, H, L, D] at the positions [B, Q, C] that each query head chose."""
    batch, heads, _, dim = tensor.shape
    places = chosen.reshape(batch, heads, -1)[..., None].expand(-1, -1, -1, dim)
    return tensor.gather(2, places).view(*chosen.shape, dim)
