"""InfiniGen: scores speculated from skewed queries and partial keys, and a dynamic number of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..metrics.byte_budgets import Budget
from ..offload.channels import ChannelCache
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .capabilities import Speculative
from .fields import checked, number
from .ranking import Ranking, of_tokens
from .selection import Selection, reduce_group, stack_rows, take_tokens
from .state import tensor_bytes


@dataclass
class InfiniGenState(State):
    """A state with the kept columns of the rotation [B, H, D, r] and the rotated keys in these channels."""

    auxiliary = ("partial_keys",)

    rotation: Tensor
    partial_keys: ChannelCache
    asked: Tensor | None = None  # the queries [B, Q, D] of the last choice, which may be speculated

    def read_bytes(self) -> int:
        """Bytes of the partial keys of all tokens and of the rotation."""
        return tensor_bytes([self.partial_keys, self.rotation])


@dataclass
class InfiniGen(Speculative, Method[InfiniGenState]):
    """Attends to the tokens whose speculated score is within `alpha` of the largest, at most the budget.

    The maximum includes the sinks, also if `sinks` keeps them anyway; as a sink often has by far the largest score, the
    threshold may leave most of the budget unused. Preset "top" has no threshold (`alpha` None): every head fetches as
    many of its best tokens as the budget allows, as in the paper's figure 11a (top-B), for comparisons at equal budget.

    Source: InfiniGen (arXiv 2406.19707), section 4. A rotation A from the SVD of the queries skews queries and keys. It
    does not change their products, but concentrates their magnitude in few channels; the share `ratio` of the channels
    with the largest column sums of |QA| + |KA| is kept. Scores are q·k over these channels. Each query head counts the
    tokens above its maximum − `alpha`, whose weight is at least e^-alpha of the largest. Every head fetches its best
    tokens; their number is the mean count over the heads, rounded down, and at most what the budget leaves. The first
    layer is dense, because no earlier layer can speculate for it. The newest token is always attended to, within the
    budget. As in the paper, generated tokens are scored like those of the prompt, and count within the budget.

    In a running model `select` gets queries speculated from the attention input of the previous layer, as in the paper.
    `replay` has no model: it uses the layer's true queries, so the selection has no speculation error.

    `ratio` 0.2 and `alpha` 4 are those of the published speed runs. Preset "official" is the published Llama code: a
    separate choice per query head, and alpha 5. That code keeps the union of the top channels of |QA| and of |KA|;
    here, as in the paper, their sum decides in both presets.

    Deviations: the paper skews W_Q and W_K once, with the queries of a sample text and per query head; here the queries
    of the prompt, after RoPE, give one rotation per KV head for all its query heads, and |QA| is averaged over them.
    Prefetching from host memory and limiting that pool are not implemented; they do not change the selection. If the
    budget is a share of less than one token, it is one token.
    """

    name = "infinigen"
    title = "InfiniGen"
    paper = "arXiv 2406.19707"
    score_name = "speculated logit"
    kind = "retrieval"
    style = Style(dash="solid", symbol="circle-open")
    overlaps_build = True
    least_recent = 1
    builds_for_any_budget = True
    expected_failures = {
        "extension_equals_one_build": "the rotation and its channels come from the prompt alone (paper, section 4.2)",
    }
    presets = {"paper": {}, "official": {"group": "each", "alpha": 5.0}, "top": {"alpha": None}}

    budget: Budget = 0.2
    dense_layers: int = 1
    ratio: float = checked(0.2, int | float, lambda ratio: 0 < ratio <= 1, "a share of the head dimension in (0, 1]")
    alpha: float | None = number(4.0, 0)

    def budget_tokens(self, prompt_length: int) -> int:
        """The budget in tokens; a share is at least one token."""
        if self.reserved == 1 and isinstance(self.budget, float) and self.budget * prompt_length < 1:
            return 1
        return super().budget_tokens(prompt_length)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> InfiniGenState:
        """The state with the rotation's kept columns and the partial keys; O(L·D²)."""
        count = max(1, math.floor(self.ratio * layer.head_dim))
        rotation = skewing_matrix(queries, layer.n_kv_heads)  # [B, H, D, D]
        by_head = queries.unflatten(1, (layer.n_kv_heads, -1)).float()  # [B, H, G, L, D]
        size = (by_head @ rotation[:, :, None]).abs().sum(-2).mean(2)  # [B, H, D]
        size += (keys.float() @ rotation).abs().sum(-2)
        largest = size.argsort(dim=-1, descending=True, stable=True)[..., :count]
        kept = rotation.gather(-1, largest[:, :, None].expand(-1, -1, layer.head_dim, -1))  # [B, H, D, r]
        partial = ChannelCache.of((keys.float() @ kept).to(keys.dtype))
        return InfiniGenState(layer, keys.shape[2], keys.shape[2], kept, partial)

    def extend(self, state: InfiniGenState, queries: Tensor, keys: Tensor, values: Tensor) -> InfiniGenState:
        """The state with the new tokens' partial keys added."""
        state.append(keys, values)
        state.partial_keys.append((keys.float() @ state.rotation).to(keys.dtype))
        return state

    def choose(self, state: InfiniGenState, queries: Tensor) -> Selection:
        """Sinks, the tokens with the largest speculated scores, and the recent window."""
        layer, sinks = state.layer, self.sinks
        state.asked = queries
        scores = self._speculated_scores(state, queries)  # [B, Q, L]
        end = self.recent_start(state)
        counts = self._counts(state, scores, end)
        middle = reduce_group(scores, layer.n_kv_heads, self.group)[..., sinks:end]
        if len(set(counts)) == 1:
            chosen = take_tokens(middle, counts[0], start=sinks, details=layer.details)
        else:
            rows = zip(middle.split(1), counts, strict=True)
            selections = [take_tokens(row, count, start=sinks, details=layer.details) for row, count in rows]
            chosen = stack_rows(selections, [0] * len(counts))
        return self.with_sinks_and_recent(state, chosen)

    def ranking(self, state: InfiniGenState, queries: Tensor, keys: Tensor) -> Ranking:
        """The speculated scores, as the step had them, and those of the true queries over all channels."""
        asked = queries if state.asked is None else state.asked
        by_head = queries.unflatten(1, (state.layer.n_kv_heads, -1)).float()  # [B, H, G, D]
        logits = state.layer.logits(by_head @ keys.float().mT).flatten(1, 2)
        scores, exact = (
            reduce_group(each, state.layer.n_kv_heads, self.group)
            for each in (self._speculated_scores(state, asked), logits)
        )
        return of_tokens(scores[..., self.sinks : self.recent_start(state)], exact, self.sinks)

    def _counts(self, state: InfiniGenState, scores: Tensor, end: int) -> list[int]:
        """The number of tokens to fetch per batch row: the mean count over query heads, within the budget."""
        most = self.free_budget(state)
        if self.alpha is None:
            return [most] * len(scores)
        earlier = scores[..., : state.length - 1]  # when the paper speculates, the newest key does not exist yet
        important = scores[..., self.sinks : end] > earlier.amax(-1, keepdim=True) - self.alpha
        means = important.sum(-1).double().mean(-1)  # [B]
        return [min(math.floor(mean), most) for mean in means.tolist()]

    def _speculated_scores(self, state: InfiniGenState, queries: Tensor) -> Tensor:
        """Scaled logits [B, Q, L] of queries [B, Q, D] over the kept channels."""
        by_head = queries.unflatten(1, (state.layer.n_kv_heads, -1)).float()  # [B, H, G, D]
        return state.layer.logits((by_head @ state.rotation) @ state.partial_keys.channels.float()).flatten(1, 2)


def skewing_matrix(queries: Tensor, n_kv_heads: int) -> Tensor:
    """Orthogonal matrices [B, H, D, D] float32: the right singular vectors of each KV head's queries [B, Q, L, D].

    Columns are sorted by descending singular value; their signs are arbitrary and do not change products. Source:
    InfiniGen (arXiv 2406.19707), section 4.2. They are computed as eigenvectors of QᵀQ, which avoids an L × D SVD.
    """
    stacked = queries.unflatten(1, (n_kv_heads, -1)).flatten(2, 3).float()  # [B, H, G·L, D]
    vectors: Tensor = torch.linalg.eigh((stacked.transpose(-1, -2) @ stacked).double()).eigenvectors
    return vectors.flip(-1).float()
