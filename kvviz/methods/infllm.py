"""InfLLM: blocks of consecutive tokens, ranked by a few representative keys per block."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidInputError
from ..offload.token_cache import TokenCache
from ..trace.styles import Style
from .attention import QUERY_BLOCK
from .base import LayerContext, Method
from .fields import one_of, whole
from .ranking import Ranking, of_groups
from .selection import Selection, group_scores, positions, reduce_group, take_groups
from .state import TokenState


@dataclass
class InfLLMState(TokenState):
    """A state with one key per block, and the scores of the tokens in the last block and in the local window."""

    auxiliary = ("representatives",)

    representatives: Tensor  # [B, R, N, D], the mean of each block's representative keys
    open_scores: Tensor  # [B, R, t], scores of the tokens in the last block
    local_scores: Tensor  # [B, Q, w], scores so far of the tokens in the local window, from later queries


@dataclass
class InfLLM(Method[InfLLMState]):
    """Ranks blocks of `block_size` tokens by q·(representative keys) and recalls the best within the budget.

    Source: InfLLM (arXiv 2402.04617), sections 3.1 and 3.2. The first `sinks` tokens and the local window, the last
    `recent` tokens (at least the newest), are always attended to. The tokens between them are cut into blocks. A
    token's representative score is the mean logit that it gets from the next `recent` queries, which are all known once
    it leaves the local window. The `n_representatives` tokens of a block with the largest scores represent it. The
    relevance of a block is the sum of q·k over them. It is linear in the keys, so their mean is kept, which makes short
    blocks comparable with full ones.

    Generated tokens pass through the local window like those of the prompt, scored by the decode queries after them,
    and join the last block. This block is ranked by the tokens that it has so far; once it is full, a new one begins,
    and its tokens may be offloaded. As in the paper, local window and recalled blocks do not grow with them: generated
    tokens count within the budget. The worst recalled block is trimmed to its first tokens.

    Preset "official" follows the published code where it differs: `measure="weights"` scores a token by its softmax
    weights instead of the logits, representatives are chosen per query head (`group="each"`), and `across_heads` gives
    all heads of a layer the blocks with the best mean relevance. In that code the softmax covers all tokens that a
    query attends to and includes the token's own query; here it covers the local window without the own query.

    Deviations: the paper gives all tokens beyond the local window the same position; here each keeps the RoPE position
    with which it was cached. The paper's 128 sinks and local window of 4,096 tokens do not fit small budgets: the
    defaults are 16 and 32. The paper attends to the tokens after the last full block; here they form a short block that
    is ranked. With group="mean", "max" or "sum", which the paper does not discuss, the query heads of a KV head share
    representatives and blocks.
    """

    name = "infllm"
    title = "InfLLM"
    paper = "arXiv 2402.04617"
    score_name = "q·mean of a block's representative keys"
    kind = "retrieval"
    stages = ("kept", "grouping", "ranking", "trimming")
    group_name = "block"
    style = Style(dash="dot", symbol="diamond-open")
    least_recent = 1  # the local window always holds the newest token
    builds_for_any_budget = True
    presets = {
        "paper": {},
        "official": {"measure": "weights", "group": "each", "across_heads": True},
    }

    sinks: int = 16
    recent: int = 32
    block_size: int = whole(128, 1)
    n_representatives: int = whole(4, 1)
    measure: str = one_of("logits", ("logits", "weights"))
    across_heads: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_representatives > self.block_size:
            wanted = f"at most the block_size, {self.block_size}"
            raise InvalidInputError(f"{self.name}: n_representatives", self.n_representatives, wanted)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> InfLLMState:
        """The state with the representatives of all blocks; O(L · (window + 256) · D)."""
        length = keys.shape[2]
        first = min(self.sinks, length)
        end = max(length - self.always_recent, first)
        received = self._received(layer, queries, keys)  # [B, Q, L]
        scores = reduce_group(received[..., first:end], layer.n_kv_heads, self.group)
        tokens = layer.token_cache(keys, values)
        open_from = max(end - first - 1, 0) // self.block_size * self.block_size
        return InfLLMState(
            layer,
            length,
            length,
            tokens,
            self._representatives(tokens, scores, first),
            scores[..., open_from:].clone(),
            received[..., max(length - self.always_recent, 0) :].clone(),
        )

    def extend(self, state: InfLLMState, queries: Tensor, keys: Tensor, values: Tensor) -> InfLLMState:
        """The state with the new tokens added; each moves one token from the local window into the last block."""
        state.tokens.append(keys, values)
        for step in range(keys.shape[2]):
            start = state.length - state.local_scores.shape[-1]
            places = positions(start, state.length, *keys.shape[:2], keys.device)
            local = state.tokens.take_keys(places)  # without the query's own key
            logits = _logits(queries[:, :, step : step + 1], local)  # [B, H, G, 1, w]
            scores = self._measured(state.layer, logits, torch.ones_like(logits, dtype=torch.bool))
            state.local_scores = pad(state.local_scores + scores.flatten(1, 2), (0, 1))
            state.length += 1
            if state.length > self.always_recent:
                leaving = reduce_group(state.local_scores[..., :1], state.layer.n_kv_heads, self.group)
                state.local_scores = state.local_scores[..., 1:]
                self._join_block(state, leaving, state.length - 1 - self.always_recent)
        return state

    def local_window(self, state: InfLLMState) -> int:
        """The local window and the last block: its representatives are chosen again with each of its tokens."""
        return self.recent_window(state) + state.open_scores.shape[-1]

    def choose(self, state: InfLLMState, queries: Tensor) -> Selection:
        """Sinks, the best blocks within the budget, and the local window."""
        scores = self._scores(state, queries)
        end = self.recent_start(state)
        batch, heads, blocks = scores.shape
        offsets = positions(0, blocks + 1, batch, heads, scores.device) * self.block_size
        offsets = offsets.clamp(max=end - self.sinks)
        order = positions(self.sinks, end, batch, heads, scores.device)
        free, details = self.free_budget(state), state.layer.details
        chosen = take_groups(scores, offsets.diff(), offsets, order, free, details=details)
        return self.with_sinks_and_recent(state, chosen)

    def ranking(self, state: InfLLMState, queries: Tensor, keys: Tensor) -> Ranking:
        """The score of each token's block, and that of the token's own key."""
        scores, end = self._scores(state, queries), self.recent_start(state)
        block = (torch.arange(state.length, device=keys.device) - self.sinks) // self.block_size
        block[: self.sinks], block[end:] = -1, -1
        alone = group_scores(queries, keys.float(), self.group)
        return of_groups(scores, alone, block.expand(*scores.shape[:2], -1))

    def _scores(self, state: InfLLMState, queries: Tensor) -> Tensor:
        """The scores of all blocks, [B, R, N]."""
        scores = group_scores(queries, state.representatives, self.group)
        return scores.mean(1, keepdim=True).repeat(1, scores.shape[1], 1) if self.across_heads else scores

    def _received(self, layer: LayerContext, queries: Tensor, keys: Tensor) -> Tensor:
        """Score of each token from the queries after it, at most one local window of them: float32 [B, Q, L]."""
        length = keys.shape[2]
        received = torch.zeros((*queries.shape[:2], length), device=keys.device)
        for start in range(0, length, QUERY_BLOCK):
            stop, low = min(start + QUERY_BLOCK, length), max(start - self.always_recent, 0)
            places = torch.arange(low, stop, device=keys.device)
            distances = places[start - low :, None] - places  # from each query back to each key
            logits = _logits(queries[:, :, start:stop], keys[:, :, low:stop])
            near = ((distances >= 1) & (distances <= self.always_recent)).expand_as(logits)
            received[..., low:stop] += self._measured(layer, logits, near).flatten(1, 2)
        return received

    def _measured(self, layer: LayerContext, logits: Tensor, near: Tensor) -> Tensor:
        """Sum over the queries of logits or weights of the keys `near` them: [B, H, G, n, L] -> [B, H, G, L]."""
        if self.measure == "logits":
            return logits.masked_fill(~near, 0).sum(-2)
        weights = layer.logits(logits).masked_fill(~near, -torch.inf).softmax(-1)
        return weights.nan_to_num(0).sum(-2)  # NaN if a query has no earlier key

    def _representatives(self, tokens: TokenCache, scores: Tensor, start: int) -> Tensor:
        """The mean representative key [B, R, N, D] of each block of the n tokens from `start` on; scores [B, R, n]."""
        count = scores.shape[-1]
        blocks = -(-count // self.block_size)
        padded = pad(scores, (0, blocks * self.block_size - count), value=-torch.inf)
        padded = padded.view(*scores.shape[:2], blocks, self.block_size)
        best = padded.argsort(dim=-1, descending=True, stable=True)[..., : self.n_representatives]  # [B, R, N, r]
        places = best + torch.arange(blocks, device=best.device)[:, None] * self.block_size
        real = (places < count)[..., None]  # a short block has fewer
        keys = tokens.take_keys((start + places.clamp(max=count - 1)).flatten(-2))
        keys = keys.view(*places.shape, keys.shape[-1])
        return ((keys.float() * real).sum(-2) / real.sum(-2)).to(keys.dtype)

    def _join_block(self, state: InfLLMState, score: Tensor, position: int) -> None:
        """Add the token at `position` with its score [B, R, 1] to the last block, or start a new block with it."""
        if position < self.sinks:
            return
        begins = (position - self.sinks) % self.block_size == 0
        state.open_scores = score if begins else torch.cat([state.open_scores, score], dim=-1)
        start = position + 1 - state.open_scores.shape[-1]
        last = self._representatives(state.tokens, state.open_scores, start)
        kept = state.representatives if begins else state.representatives[:, :, :-1]
        state.representatives = torch.cat([kept, last], dim=2)


def _logits(queries: Tensor, keys: Tensor) -> Tensor:
    """q·k of queries [B, Q, n, D] with keys [B, H, L, D]: float32 [B, H, G, n, L]."""
    by_head: Tensor = queries.unflatten(1, (keys.shape[1], -1)).float()
    return by_head @ keys[:, :, None].float().transpose(-1, -2)
