"""TriAttention: eviction while generating, by a trigonometric series of the distance from future queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from .buffered import BufferedEviction
from .eviction import EvictionState
from .fields import one_of, whole
from .rotation import angles, pairs, turn, unrotate
from .selection import Group, reduce_group, to_selection_heads

QUERY_BLOCK = 1024  # queries that are turned back at a time; limits the memory of a long prompt
LEAST_SPREAD = 1e-6  # of the scores of a head, so that equal scores are not divided by 0


@dataclass
class TriAttentionState(EvictionState):
    """A state with the sums [B, Q, D] of all queries before RoPE and [B, Q, dim / 2] of the norms of their pairs."""

    query_sum: Tensor = field(init=False)
    norm_sum: Tensor = field(init=False)

    def __post_init__(self) -> None:
        batch, heads, device = self.kept.shape[0], self.layer.n_heads, self.kept.device
        n_pairs = self.layer.known_rotation("triattention").dim // 2
        self.query_sum = torch.zeros((batch, heads, self.layer.head_dim), device=device)
        self.norm_sum = torch.zeros((batch, heads, n_pairs), device=device)


@dataclass
class TriAttention(BufferedEviction[TriAttentionState]):
    """Drops tokens that future queries, as far as they are known from their centre, will attend to least.

    Before RoPE the queries of a head lie close to one centre. RoPE makes the logit of the centre q̄ and a key k a
    trigonometric series of their distance Δ, Σ |q̄_f|·|k_f|·cos(ω_f·Δ + φ_f), a term for each pair f of channels: heads
    prefer certain distances. A token's score is this series, averaged over the distances to the queries 1, 2, 4, … up
    to `farthest` tokens ahead, plus Σ (E|q_f| − |q̄_f|)·|k_f|, which counts more the less the queries are concentrated.
    Each query head's scores are standardised over the ranked tokens (mean 0, deviation 1), then reduced over the group
    by the maximum. Source: TriAttention (arXiv 2604.04921), section 4, and its published code (rounds of 128 tokens,
    offsets up to 65,536).

    RoPE turns a key at its own position, so that the averaged series is one inner product of the cached key with
    q̄, turned to the future positions and averaged: keys are not turned back. Channels without RoPE add the inner
    product of centre and key. The layer's RoPE must be known (`LayerContext.rotation`).

    Deviations: the centre is not calibrated on another text beforehand; it is the mean of all queries so far, of the
    prompt and of generated tokens, and moves with them. Each layer and KV head chooses alone, which in the code is an
    option; its runs average the scores over layers. The paper's budget is what a round leaves, and the buffer comes on
    top; here both are within the budget, generated tokens included. A prompt longer than the budget is compressed too,
    with the queries that it has. Soft caps are ignored. `terms` leaves out a part of the score: an ablation.

    preset="official": as in the published runs, no token of a prompt that leaves room for a round is dropped
    (`protects_prompt`). The code's server keeps the last 128 tokens instead: `recent`.
    """

    name = "triattention"
    title = "TriAttention"
    paper = "arXiv 2604.04921"
    score_name = "expected attention logit, standardised"
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"paper": {}, "official": {"protects_prompt": True}}
    state_class = TriAttentionState

    group: Group = "max"
    farthest: int = whole(65536, 1)
    terms: Literal["both", "distance", "norm"] = one_of("both", ("both", "distance", "norm"))
    protects_prompt: bool = False

    def observe(self, state: TriAttentionState, queries: Tensor) -> None:
        """Add the queries [B, Q, n, D] of the newest tokens to the sums."""
        rotation = state.layer.known_rotation(self.name)
        position = state.length - queries.shape[2]
        for block in queries.split(QUERY_BLOCK, dim=2):
            positions = torch.arange(position, position + block.shape[2], device=queries.device)
            plain = unrotate(block, positions, rotation)
            state.query_sum += plain.sum(2)
            state.norm_sum += torch.hypot(*pairs(plain, rotation)).sum(2)
            position += block.shape[2]

    def scores(self, state: TriAttentionState, keys: Tensor) -> Tensor:
        """Standardised scores [B, R, K]; 0 for sinks and window, and infinity for a protected prompt."""
        kept, layer = state.kept, state.layer
        ranked = slice(self.sinks, kept.shape[-1] - self.window(state))
        by_head = self._series(state, keys[:, :, ranked])  # [B, Q, n]
        free = to_selection_heads(self._evictable(state)[..., ranked], layer.n_heads)
        count = free.sum(-1, keepdim=True).clamp(min=1)
        centred = by_head - (by_head * free).sum(-1, keepdim=True) / count
        spread = ((centred.square() * free).sum(-1, keepdim=True) / count).sqrt().clamp(min=LEAST_SPREAD)
        standard = (centred / spread).masked_fill(~free, torch.inf)
        reduced = reduce_group(standard, layer.n_kv_heads, self.group)
        return pad(reduced, (ranked.start, kept.shape[-1] - ranked.stop))

    def _series(self, state: TriAttentionState, keys: Tensor) -> Tensor:
        """Expected logits [B, Q, n], without the model's scale, of keys [B, H or R, n, D] for future queries."""
        rotation, centre, keys = state.layer.known_rotation(self.name), state.query_sum / state.length, keys.float()
        logits = torch.zeros((*state.query_sum.shape[:2], keys.shape[2]), device=keys.device)
        if self.terms != "norm":
            ahead = 2 ** torch.arange(self.farthest.bit_length(), device=keys.device)
            angle = angles(state.length + ahead, rotation)
            cos, sin = (part.mean(0) * rotation.scaling for part in (angle.cos(), angle.sin()))
            logits += _products(turn(centre, cos, sin, rotation), keys)
        if self.terms != "distance":
            spread = state.norm_sum / state.length - torch.hypot(*pairs(centre, rotation))  # E|q| - |q̄|
            logits += _products(spread * rotation.scaling, torch.hypot(*pairs(keys, rotation)))
        return logits

    def _evictable(self, state: TriAttentionState) -> Tensor:
        """Which kept tokens a round may drop, bool [B, R, K]: not those of a protected prompt."""
        most = self.budget_tokens(state.prompt_length) - self.buffer_tokens(state) - self.window(state)
        protected = state.prompt_length if self.protects_prompt and state.prompt_length <= most else 0
        evictable: Tensor = state.kept >= protected
        return evictable


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """Inner products [B, Q, n] of queries [B, Q, D] and keys [B, H or R, n, D] of their heads."""
    by_head: Tensor = queries.unflatten(1, (keys.shape[1], -1))
    return (by_head @ keys.mT).flatten(1, 2)
