"""MagicPIG: tokens sampled by locality-sensitive hashing, attended with importance weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..trace.styles import Style
from .base import LayerContext, Method
from .fields import number, whole
from .selection import Group, Selection, to_selection_heads
from .state import TokenState

LEAST_COLLISIONS = 2
TOKEN_BLOCK = 1024  # tokens hashed at a time: bounds the memory of their projections
TABLE_BLOCK = 30  # tables compared at a time: few enough to count in a byte, many enough to be fast


@dataclass
class MagicPIGState(TokenState):
    """Beside the counts, the codes of every token that is sampled, and what they were hashed with."""

    start: int  # of the tokens with codes
    codes: Tensor  # [B, H, tables, N]
    centre: Tensor  # [B, H, 1, D], the mean of their keys
    directions: Tensor  # [D, tables · bits]

    @property
    def end(self) -> int:
        """Behind the last token with codes."""
        return self.start + self.codes.shape[-1]


@dataclass
class MagicPIG(Method[MagicPIGState]):
    """Samples the tokens whose hash codes meet the query's in at least two tables, and weights each by 1/probability.

    Source: MagicPIG (arXiv 2410.16179), section 4: SimHash with `tables` tables (L = 150) of `bits` random hyperplanes
    (K = 10), the same for all heads and layers; keys are hashed after their mean is subtracted, queries as they are. A
    token of angle θ to the query is sampled with probability u = 1 − (1−p^K)^L − L·p^K·(1−p^K)^(L−1), p = 1 − θ/π, and
    its logit gets the bias −log u: over random hyperplanes, the sums of exp(logit) and of exp(logit)·value are then
    those of exact attention in the mean. The first 4 and last 64 tokens of the prompt and all generated ones are
    attended with certainty and without a bias.

    `group`: "each" is the paper's, where every query head samples for itself. With "mean" and "sum" the mean query of a
    KV head samples for all its query heads; u is then the probability of that query, so that the sums stay unbiased, at
    another variance. With "max" a KV head attends what any of its query heads samples, and u is one minus the product
    of the heads' probabilities not to: approximate, because the heads share their hyperplanes.

    The number of sampled tokens varies; indices are padded with -1. The budget caps it: of more tokens than it has
    room for, those with the most collisions stay, ties to the earlier. A capped sample is biased, because u does
    not know of the cap. The scores of a selection are numbers of collisions.

    The paper's other settings are (bits, tables) = (9, 120) and (8, 75), which sample more tokens. Preset "official":
    the published code adds 1e-4 to u (`floor`). Deviations: the paper also attends everything in layer 16 (of 32), of
    which `dense_layers` knows only the first; it looks codes up in hash tables on the host's CPU, where they are
    compared one by one here.
    """

    name = "magicpig"
    title = "MagicPIG"
    paper = "arXiv 2410.16179"
    kind = "retrieval"
    style = Style(dash="longdash", symbol="triangle-down-open")
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    presets = {"paper": {}, "official": {"floor": 1e-4}}
    expected_failures = {
        "extension_equals_one_build": "generated tokens are attended in full and never hashed",
    }

    sinks: int = 4
    recent: int = 64
    dense_layers: int = 1
    group: Group = "each"
    bits: int = whole(10, 1, 30)
    tables: int = whole(150, LEAST_COLLISIONS)
    floor: float = number(0.0, 0, 1)
    seed: int = whole(0, 0)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> MagicPIGState:
        """Codes of every token but sinks and recent window; O(L · tables · bits · D)."""
        length = keys.shape[2]
        start = min(self.sinks, length)
        end = max(length - self.recent, start)
        directions = _directions(keys.shape[-1], self.tables * self.bits, self.seed).to(keys.device)
        hashed = keys[:, :, start:end]
        centre = hashed.float().mean(2, keepdim=True).nan_to_num(0)  # NaN where there is nothing to hash
        codes = torch.empty(
            (*keys.shape[:2], self.tables, end - start),
            dtype=torch.int16 if self.bits < 16 else torch.int32,
            device=keys.device,
        )
        for first in range(0, end - start, TOKEN_BLOCK):
            some = slice(first, first + TOKEN_BLOCK)
            found = self._hash(hashed[:, :, some].float() - centre, directions)  # [B, H, n, tables]
            codes[..., some] = found.transpose(-1, -2)
        return MagicPIGState(layer, length, length, layer.token_cache(keys, values), start, codes, centre, directions)

    def recent_start(self, state: MagicPIGState) -> int:
        """The first token behind those with codes, of which the recent window of the prompt begins."""
        return state.end

    def choose(self, state: MagicPIGState, queries: Tensor) -> Selection:
        """Sinks, the sampled tokens, and all tokens from the recent window of the prompt on."""
        layer = state.layer
        asking = self._asking(queries.float().unflatten(1, (layer.n_kv_heads, -1)))  # [B, H, A, D]
        collisions = self._collisions(state, asking)  # [B, R, N]
        counts, places = self._sample(collisions, self.free_budget(state))  # [B, R, S]
        chosen = places < collisions.shape[-1]
        indices = torch.where(chosen, places + state.start, -1)
        bias = torch.where(chosen, -self._log_probability(state, asking, indices), 0.0)
        sample = Selection(indices, padded=True, bias=bias)
        if layer.details:
            nothing = torch.full_like(indices, -1, dtype=torch.int32)
            sample = Selection(indices, nothing, counts.float().masked_fill(~chosen, torch.nan), padded=True, bias=bias)
        return self.with_sinks_and_recent(state, sample)

    def _asking(self, by_head: Tensor) -> Tensor:
        """The queries that sample for each KV head: [B, H, G, D] -> [B, H, A, D]."""
        return by_head.mean(2, keepdim=True) if self.group in ("mean", "sum") else by_head

    def _hash(self, vectors: Tensor, directions: Tensor) -> Tensor:
        """Codes [..., tables] of vectors [..., D]: on which side of each hyperplane a vector lies."""
        sides = (vectors @ directions > 0).unflatten(-1, (self.tables, self.bits))
        codes = torch.zeros(sides.shape[:-1], dtype=torch.int32, device=sides.device)
        for bit in range(self.bits):
            codes += sides[..., bit].int() << bit
        return codes

    def _collisions(self, state: MagicPIGState, asking: Tensor) -> Tensor:
        """In how many tables each token [B, R, N] has the code of the query that samples it."""
        asked = self._hash(asking, state.directions).to(state.codes.dtype)  # [B, H, A, tables]
        counts = torch.zeros((*asked.shape[:3], state.codes.shape[-1]), dtype=torch.int32, device=asked.device)
        for first in range(0, self.tables, TABLE_BLOCK):
            some = slice(first, first + TABLE_BLOCK)
            same = state.codes[:, :, None, some] == asked[..., some, None]  # [B, H, A, t, N]
            # Summed as bytes: 5 ms for 9 query heads and 8,192 tokens on 2 CPU cores; summing booleans took 311 ms.
            counts += same.view(torch.uint8).sum(3, dtype=torch.uint8)
        return counts.amax(2) if self.group == "max" else counts.flatten(1, 2)

    def _sample(self, collisions: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """Collisions and ascending places [B, R, S] of at most `room` sampled tokens; a pad's place is N.

        S does not depend on how many were sampled: no wait for the device, and a row's slots not for its batch's.
        """
        length = collisions.shape[-1]
        places = torch.arange(length, device=collisions.device)
        keyed = collisions.long() * length + (length - 1 - places)  # most collisions first, then the earlier token
        best = keyed.topk(min(length, room), dim=-1).values
        counts = best // max(length, 1)
        found = torch.where(counts >= LEAST_COLLISIONS, length - 1 - best % max(length, 1), length)
        found, order = found.sort(-1)
        return counts.gather(-1, order), found

    def _log_probability(self, state: MagicPIGState, asking: Tensor, indices: Tensor) -> Tensor:
        """Logarithm of the probability with which each of `indices` [B, R, S] is sampled, float32."""
        rows = indices.shape[1]
        keys = state.tokens.take_keys(indices).float() - to_selection_heads(state.centre, rows)  # [B, R, S, D]
        by_row = asking.flatten(1, 2).unflatten(1, (rows, -1))  # [B, R, A', D]
        cosines = normalize(by_row, dim=-1) @ normalize(keys, dim=-1).transpose(-1, -2)  # [B, R, A', S]
        missed = torch.log1p(-sampling_probability(cosines, self.bits, self.tables)).sum(2)
        probability = -torch.expm1(missed) + self.floor
        return probability.clamp(min=torch.finfo(torch.float32).tiny).log().float()


def sampling_probability(cosines: Tensor, bits: int, tables: int) -> Tensor:
    """Probability that two vectors share their code in at least two of `tables` tables: float64, like `cosines`.

    A hyperplane leaves vectors of angle θ on one side with probability p = 1 − θ/π, a table gives them one code with
    probability p^bits. Source: MagicPIG (arXiv 2410.16179), section 4.
    """
    angles = cosines.double().clamp(-1, 1).acos()
    one = (1 - angles / torch.pi) ** bits
    # Small probabilities are differences of almost equal numbers: double precision keeps 8 digits down to 1e-16.
    none = tables * torch.log1p(-one)
    exactly_one = tables * one * torch.exp((tables - 1) * torch.log1p(-one))
    return (-torch.expm1(none) - exactly_one).clamp(0, 1)


@lru_cache(maxsize=8)
def _directions(dim: int, count: int, seed: int) -> Tensor:
    """Normals [D, count] of random hyperplanes through the origin; shared by all layers, so not to be written to."""
    return torch.randn(dim, count, generator=torch.Generator().manual_seed(seed))
