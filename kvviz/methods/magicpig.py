"""MagicPIG: tokens sampled by locality-sensitive hashing, with importance weights in the attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..offload.growing import GrowingTensor
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method
from .fields import number, whole
from .ranking import Ranking, of_tokens
from .selection import Group, Selection, positions, reduce_group, to_selection_heads
from .state import TokenState

LEAST_COLLISIONS = 2
TOKEN_BLOCK = 1024  # tokens hashed at a time; limits the memory of their projections
TABLE_BLOCK = 30  # tables compared at a time: counts must fit into a byte, and larger blocks are faster


@dataclass
class MagicPIGState(TokenState):
    """A state with the hash codes of the tokens that can be sampled, and the parameters of the hash."""

    codes: GrowingTensor  # [B, H, tables, N], of the tokens after the sinks
    centre: Tensor  # [B, H, 1, D], the mean key of those of the prompt
    directions: Tensor  # [D, tables · bits]


@dataclass
class MagicPIG(Method[MagicPIGState]):
    """Samples the tokens that share the query's hash code in at least two tables, each weighted by 1 / probability.

    Source: MagicPIG (arXiv 2410.16179), section 4: SimHash with `tables` tables (L = 150) of `bits` random hyperplanes
    (K = 10), the same for all heads and layers. The mean key is subtracted from keys before hashing, but not from
    queries. A token at angle θ to the query is sampled with probability u = 1 − (1−p^K)^L − L·p^K·(1−p^K)^(L−1), with
    p = 1 − θ/π, and its logit gets the bias −log u. The sums of exp(logit) and of exp(logit)·value are then unbiased:
    their expectation over random hyperplanes is that of exact attention. The first 4 and the last 64 tokens are always
    attended to, without a bias.

    In the paper all generated tokens are always attended to, on top of the budget, and never hashed:
    generated="on_top". By default they count within the budget, where they would soon take all of it. So a generated
    token that leaves the recent window gets codes too, and is sampled like those of the prompt. The mean key stays that
    of the prompt; it is 0 if the prompt has no token between sinks and recent window.

    `group`: with "each", as in the paper, each query head samples separately. With "mean" and "sum" the mean query of a
    KV head samples for all its query heads; u is the probability for that query, so that the sums stay unbiased, but
    their variance differs. With "max" a KV head attends to the tokens that any of its query heads samples, and u is one
    minus the product of the heads' probabilities of not sampling: approximate, as heads share hyperplanes.

    The number of sampled tokens varies; indices are padded with -1. If there are more tokens than the budget allows,
    those with the most collisions stay (ties go to the earlier token); such a sample is biased, because u ignores the
    limit. The scores of a selection are numbers of collisions.

    The paper's other settings are (bits, tables) = (9, 120) and (8, 75), which sample more tokens. Preset "official":
    the published code adds 1e-4 to u (`floor`). Deviations: the paper also keeps layer 16 (of 32) dense, while
    `dense_layers` covers only first layers; it looks codes up in hash tables on the host's CPU; here all are compared.
    """

    name = "magicpig"
    title = "MagicPIG"
    paper = "arXiv 2410.16179"
    score_name = "number of collisions"
    kind = "retrieval"
    style = Style(dash="longdash", symbol="triangle-down-open")
    needs_queries = False
    overlaps_build = True
    builds_for_any_budget = True
    presets = {"paper": {}, "official": {"floor": 1e-4}}
    least_recent = 1
    expected_failures = {
        "extension_equals_one_build": "the mean key that is subtracted comes from the prompt",
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
        """The state with the codes of all tokens but sinks and recent window; O(L · tables · bits · D)."""
        length = keys.shape[2]
        hashed = keys[:, :, self.sinks : max(length - self.recent, self.sinks)]
        directions = _directions(keys.shape[-1], self.tables * self.bits, self.seed).to(keys.device)
        centre = hashed.float().mean(2, keepdim=True).nan_to_num(0)  # NaN if there is nothing to hash
        codes = torch.empty(
            (*keys.shape[:2], self.tables, hashed.shape[2]),
            dtype=torch.int16 if self.bits < 16 else torch.int32,
            device=keys.device,
        )
        for first in range(0, hashed.shape[2], TOKEN_BLOCK):
            block = slice(first, first + TOKEN_BLOCK)
            codes[..., block] = self._hash(hashed[:, :, block].float() - centre, directions).mT
        tokens = layer.token_cache(keys, values)
        return MagicPIGState(layer, length, length, tokens, GrowingTensor(codes, 3), centre, directions)

    def extend(self, state: MagicPIGState, queries: Tensor, keys: Tensor, values: Tensor) -> MagicPIGState:
        """The state with the new tokens added; within the budget, tokens that left the window get codes."""
        state.append(keys, values)
        start, end = self.recent_start(state), state.length - self.always_recent
        if self.generated == "within" and end > start:
            hashed = state.tokens.take_keys(positions(start, end, *keys.shape[:2], keys.device))
            state.codes.append(self._hash(hashed.float() - state.centre, state.directions).mT)
        return state

    def recent_start(self, state: MagicPIGState) -> int:
        """The first token after those with codes."""
        return self.sinks + state.codes.used

    def choose(self, state: MagicPIGState, queries: Tensor) -> Selection:
        """Sinks, the sampled tokens, and all tokens without codes."""
        layer = state.layer
        samplers = self._samplers(layer, queries)
        collisions = self._collisions(state, samplers)  # [B, R, N]
        counts, places = self._sample(collisions, self.free_budget(state))  # [B, R, S]
        chosen = places < collisions.shape[-1]
        indices = torch.where(chosen, places + self.sinks, -1)
        bias = torch.where(chosen, -self._log_probability(state, samplers, indices), 0.0)
        sample = Selection(indices, padded=True, bias=bias)
        if layer.details:
            groups = torch.full_like(indices, -1, dtype=torch.int32)
            sample = Selection(indices, groups, counts.float().masked_fill(~chosen, torch.nan), padded=True, bias=bias)
        return self.with_sinks_and_recent(state, sample)

    def ranking(self, state: MagicPIGState, queries: Tensor, keys: Tensor) -> Ranking:
        """The numbers of collisions, -inf for tokens that were not sampled; exact are the attention weights.

        These are what the sample estimates: with more tables the order of the collisions becomes that of the angles.
        """
        layer = state.layer
        collisions = self._collisions(state, self._samplers(layer, queries)).float()
        sampled = collisions.masked_fill(collisions < LEAST_COLLISIONS, -torch.inf)
        exact = attention_weights(queries, keys, layer.scale, layer.softcap)
        return of_tokens(sampled, reduce_group(exact, layer.n_kv_heads, self.group), self.sinks)

    def _samplers(self, layer: LayerContext, queries: Tensor) -> Tensor:
        """The queries that sample, [B, H, A, D]: all of a KV head's, or their mean."""
        samplers: Tensor = queries.float().unflatten(1, (layer.n_kv_heads, -1))  # A = G
        return samplers.mean(2, keepdim=True) if self.group in ("mean", "sum") else samplers

    def _hash(self, vectors: Tensor, directions: Tensor) -> Tensor:
        """Codes [..., tables] of vectors [..., D]: one bit per hyperplane, for the side on which the vector lies."""
        sides = (vectors @ directions > 0).unflatten(-1, (self.tables, self.bits))
        codes = torch.zeros(sides.shape[:-1], dtype=torch.int32, device=sides.device)
        for bit in range(self.bits):
            codes += sides[..., bit].int() << bit
        return codes

    def _collisions(self, state: MagicPIGState, samplers: Tensor) -> Tensor:
        """The number of tables in which each token has the query's code, [B, R, N]."""
        codes = state.codes.tensor
        query_codes = self._hash(samplers, state.directions).to(codes.dtype)  # [B, H, A, tables]
        shape = (*query_codes.shape[:3], codes.shape[-1])
        counts = torch.zeros(shape, dtype=torch.int32, device=query_codes.device)
        for first in range(0, self.tables, TABLE_BLOCK):
            block = slice(first, first + TABLE_BLOCK)
            same = codes[:, :, None, block] == query_codes[..., block, None]  # [B, H, A, t, N]
            # Summed as bytes: 5 ms for 9 query heads and 8,192 tokens on 2 CPU cores; summing booleans took 311 ms.
            counts += same.view(torch.uint8).sum(3, dtype=torch.uint8)
        return counts.amax(2) if self.group == "max" else counts.flatten(1, 2)

    def _sample(self, collisions: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """Collisions and ascending places [B, R, S] of at most `room` sampled tokens; padding has place N.

        S does not depend on the number of sampled tokens: no wait for the device, and rows of a batch are independent.
        """
        length = collisions.shape[-1]
        places = torch.arange(length, device=collisions.device)
        keyed = collisions.long() * length + (length - 1 - places)  # most collisions first, then the earlier token
        best = keyed.topk(min(length, room), dim=-1).values
        counts = best // max(length, 1)
        sampled = torch.where(counts >= LEAST_COLLISIONS, length - 1 - best % max(length, 1), length)
        sampled, order = sampled.sort(-1)
        return counts.gather(-1, order), sampled

    def _log_probability(self, state: MagicPIGState, samplers: Tensor, indices: Tensor) -> Tensor:
        """Logarithm of the probability with which each of `indices` [B, R, S] is sampled, float32."""
        rows = indices.shape[1]
        keys = state.tokens.take_keys(indices).float() - to_selection_heads(state.centre, rows)  # [B, R, S, D]
        by_row = samplers.flatten(1, 2).unflatten(1, (rows, -1))  # [B, R, A', D]
        cosines = normalize(by_row, dim=-1) @ normalize(keys, dim=-1).transpose(-1, -2)  # [B, R, A', S]
        missed = torch.log1p(-sampling_probability(cosines, self.bits, self.tables)).sum(2)
        probability = -torch.expm1(missed) + self.floor
        return probability.clamp(min=torch.finfo(torch.float32).tiny).log().float()


def sampling_probability(cosines: Tensor, bits: int, tables: int) -> Tensor:
    """Probability that two vectors have equal codes in at least two of `tables` tables: float64, shaped like `cosines`.

    Two vectors at angle θ are on the same side of a hyperplane with probability p = 1 − θ/π, and have equal codes in a
    table with probability p^bits. Source: MagicPIG (arXiv 2410.16179), section 4.
    """
    angles = cosines.double().clamp(-1, 1).acos()
    per_table = (1 - angles / torch.pi) ** bits
    # Small probabilities are differences of almost equal numbers: double precision keeps 8 digits down to 1e-16.
    log_none = tables * torch.log1p(-per_table)
    exactly_one = tables * per_table * torch.exp((tables - 1) * torch.log1p(-per_table))
    return (-torch.expm1(log_none) - exactly_one).clamp(0, 1)


@lru_cache(maxsize=8)
def _directions(dim: int, count: int, seed: int) -> Tensor:
    """Normals [D, count] of random hyperplanes through the origin; shared by all layers, so it must not be changed."""
    return torch.randn(dim, count, generator=torch.Generator().manual_seed(seed))
