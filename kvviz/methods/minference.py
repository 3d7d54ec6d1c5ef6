"""MInference: a prompt attends a few columns and a few diagonals of its score matrix, decoding attends everything."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor
from torch.nn.functional import pad

from ..trace.styles import Style
from .base import LayerContext
from .capabilities import SparsePrefill
from .fields import number, whole
from .full import Full

BLOCK = 64  # queries that share one list of keys, as in the published kernel


class Pattern:
    """A vertical-slash pattern: what each of a prompt's last `new` tokens attends.

    `columns` [B, Q, L] is True for keys that every later query attends; `diagonals` [B, Q, L] is True for distances,
    from a query back to a key, that every query attends.
    """

    def __init__(self, columns: Tensor, diagonals: Tensor, new: int) -> None:
        self.columns, self.diagonals, self.new = columns, diagonals, new
        self._counts = diagonals.cumsum(-1, dtype=torch.int32)  # diagonals up to each distance
        self._windows = pad(diagonals.flatten(0, 1), (BLOCK - 1, BLOCK - 1)).unfold(-1, BLOCK, 1)

    @property
    def blocks(self) -> Iterator[tuple[int, int]]:
        """Positions of the first query of each block and of the one behind its last."""
        length = self.columns.shape[-1]
        for start in range(length - self.new, length, BLOCK):
            yield start, min(start + BLOCK, length)

    def touched(self, start: int, stop: int) -> Tensor:
        """Whether any query from `start` to `stop` attends a key [B, Q, stop]."""
        # Key c lies on some query's diagonal where a distance from start - c to stop - 1 - c is a diagonal.
        up_to_last = self._counts[..., :stop].flip(-1)
        before_first = pad(self._counts[..., :start].flip(-1), (0, stop - start))
        return self.columns[..., :stop] | (up_to_last > before_first)

    def attended(self, start: int, stop: int, keys: Tensor) -> Tensor:
        """Whether the queries from `start` to `stop` attend these keys [B, Q, C]: [B, Q, n, C]."""
        heads = torch.arange(len(self._windows), device=keys.device)[:, None]
        # A key's distances from the block's queries are consecutive: one window of the diagonals.
        rows = self._windows[heads, start - keys.flatten(0, 1) + BLOCK - 1]  # [B * Q, C, BLOCK]
        on_diagonal = rows[..., : stop - start].transpose(-1, -2).view(*keys.shape[:2], stop - start, -1)
        causal = keys[:, :, None] <= torch.arange(start, stop, device=keys.device)[:, None]
        return on_diagonal | (self.columns.gather(-1, keys)[:, :, None] & causal)


@dataclass
class MInference(SparsePrefill, Full):
    """Sparse attention of the prompt in the vertical-slash pattern; decode steps attend everything.

    Source: MInference 1.0 (arXiv 2407.02490), section 3 and algorithm 2. The last `last_queries` queries of a prompt
    (of each chunk of it) attend exactly; a query head keeps the `vertical` keys that they attend most in sum and the
    `slash` distances back that they attend most in sum. The first `sinks` keys and the last `recent` distances are
    always among them. Every query then attends exactly the keys on these columns and diagonals, up to itself. Only the
    keys that a block of 64 queries touches are scored, so the score matrix is never formed.

    `vertical` = 1000, `slash` = 6096, 30 sinks and 100 recent distances are the published code's for heads that it has
    no profile of, chosen for 128k contexts. So that shorter prompts are sparse as well, at most `vertical_share` of the
    keys become columns and `slash_share` of the distances diagonals; "official" lacks these two bounds and so attends
    everything up to 6,096 tokens. At a few thousand tokens diagonals cost more than columns: one apart from all others
    makes a block of 64 queries score 127 keys. Up to `dense_length` tokens, where there is little to save, everything
    is attended.

    Deviations: no search gives each head one of three patterns beforehand (paper, section 3.2), every head has this
    one; the published kernel attends all keys of the blocks that a diagonal touches, here those beside the diagonal
    are left out of the softmax.

    Measured on SmolLM2-135M, 4,096 and 8,192 tokens of Python's reference: 34 % and 36 % of the scores computed, mean
    relative output error of a layer 0.11 and 0.14. Plain torch on a CPU takes about as long as its fused dense
    attention does there: what is saved in products is spent on gathering keys.

    Use it as a method of its own, or as `prefill="minference"` beside another method. The budget has no effect.
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
        """No token: the budget has no effect."""
        return 0

    def attend_prompt(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention output [B, Q, n, D] of a prompt's last n tokens over the pattern's keys, in the queries' dtype.

        Beside the output, memory grows with L, not with n · L.
        """
        output = torch.empty_like(queries)
        if queries.shape[2] == 0:  # a chunk that is all padding
            return output
        pattern = self.pattern(layer, queries, keys)
        first = keys.shape[2] - queries.shape[2]
        for start, stop in pattern.blocks:
            block = slice(start - first, stop - first)
            chosen, there = _listed(pattern.touched(start, stop))  # [B, Q, C]
            logits = _logits(layer, queries[:, :, block], _gathered(keys, chosen))  # [B, Q, n, C]
            seen = pattern.attended(start, stop, chosen) & there[:, :, None]
            weights = logits.masked_fill_(~seen, -torch.inf).softmax(-1)
            output[:, :, block] = weights.to(values.dtype) @ _gathered(values, chosen)
        return output

    def pattern(self, layer: LayerContext, queries: Tensor, keys: Tensor) -> Pattern:
        """The columns and diagonals for queries [B, Q, n, D], those of the last n of the keys [B, H, L, D]."""
        length, new = keys.shape[2], queries.shape[2]
        if length <= self.dense_length:
            every = torch.ones((*queries.shape[:2], length), dtype=torch.bool, device=keys.device)
            return Pattern(every, every, new)
        count = min(self.last_queries, new)
        repeated = keys.repeat_interleave(queries.shape[1] // keys.shape[1], dim=1)
        logits = _logits(layer, queries[:, :, new - count :], repeated)  # [B, Q, count, L]
        places = torch.arange(length, device=keys.device)
        distances = places[length - count :, None] - places  # from each query back to each key; negative: a later key
        weights = logits.masked_fill_(distances < 0, -torch.inf).softmax(-1)
        # Row i of the weights, from its own token backwards, is its weight by distance.
        earlier = weights.gather(-1, distances.clamp(min=0).expand_as(weights)).masked_fill_(distances < 0, 0)
        vertical = min(self.vertical, math.ceil(self.vertical_share * length))
        slash = min(self.slash, math.ceil(self.slash_share * length))
        columns = _largest(weights.sum(-2), self.sinks, vertical)
        diagonals = _largest(earlier.sum(-2), max(self.recent, 1), slash)
        return Pattern(columns, diagonals, new)

    def computed_share(self, layer: LayerContext, queries: Tensor, keys: Tensor) -> float:
        """Scores that `attend_prompt` computes, the estimate's included, as a share of those that a causal mask keeps.

        It can exceed 1 where most is attended: the masked corner of every block counts, and so do pads, since all heads
        compute as many as the one with most.
        """
        length, new = keys.shape[2], queries.shape[2]
        pattern = self.pattern(layer, queries, keys)
        computed = 0 if length <= self.dense_length else min(self.last_queries, new) * length
        for start, stop in pattern.blocks:
            computed += (stop - start) * int(pattern.touched(start, stop).sum(-1).max())
        return computed / (new * (length - new) + new * (new + 1) // 2)


def _logits(layer: LayerContext, queries: Tensor, keys: Tensor) -> Tensor:
    """Scaled and bounded logits [B, Q, n, C] in float32 of queries [B, Q, n, D] and keys [B, Q, C, D]."""
    logits = (queries @ keys.transpose(-1, -2)).float() * layer.scale
    return softcap_(logits, layer.softcap)


def _largest(sums: Tensor, always: int, count: int) -> Tensor:
    """True for the `count` largest of sums [B, Q, L], the first `always` among them; ties to the earlier one."""
    sums = sums.clone()
    sums[..., :always] = torch.inf
    kept = sums.argsort(dim=-1, descending=True, stable=True)[..., : max(always, count)]
    return torch.zeros_like(sums, dtype=torch.bool).scatter_(-1, kept, True)


def _listed(touched: Tensor) -> tuple[Tensor, Tensor]:
    """Positions [B, Q, C] of what is True in touched [B, Q, L], ascending, and which of them are no pads."""
    counts = touched.sum(-1)
    width = int(counts.max())
    slots = torch.where(touched, touched.cumsum(-1) - 1, width)  # what is False goes into a slot cut off below
    places = torch.arange(touched.shape[-1], device=touched.device).expand_as(touched)
    listed = places.new_zeros((*counts.shape, width + 1)).scatter_(-1, slots, places)[..., :width]
    return listed, torch.arange(width, device=touched.device) < counts[..., None]


def _gathered(tensor: Tensor, chosen: Tensor) -> Tensor:
    """Rows [B, Q, C, D] of a tensor [B, H, L, D] at the positions [B, Q, C] that each query head chose."""
    batch, heads, _, dim = tensor.shape
    where = chosen.reshape(batch, heads, -1)[..., None].expand(-1, -1, -1, dim)
    return tensor.gather(2, where).view(*chosen.shape, dim)
