"""Expected attention: tokens are ranked by the attention that future queries are expected to pay, in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from .base import Generated, LayerContext
from .eviction import Eviction, EvictionState
from .fields import number, one_of, whole
from .rotation import angles, turn, unrotate
from .selection import reduce_group, to_selection_heads
from .sliders import Slider


@dataclass
class ExpectedAttention(Eviction[EvictionState]):
    """Keeps the tokens with the largest expected attention from future queries, times the norm of their value.

    The prompt's queries before RoPE are taken as a sample of a normal distribution, of which each query head has its
    own mean μ and covariance Σ. RoPE turns a future query to its position; its matrix, averaged over the next `future`
    positions, turns μ and Σ. The expected weight of a key k is then proportional to exp(μ·k·s + kᵀΣk·s²/2) for a logit
    scale s: the moment-generating function. Normalised over the tokens and reduced over the group, it is raised by
    `epsilon` and multiplied by the L2 norm of the value. The first `sinks` tokens stay; neither their queries nor their
    keys count. Source: Expected Attention (arXiv 2510.00636), section 3, and its published class, kvpress's
    ExpectedAttentionPress, with the class's defaults. An `epsilon` above the expected weights, which are about 0.001
    for prompts of 1,000 tokens, lets the norm of the value decide.

    The layer's RoPE must be known (`LayerContext.rotation`): a trace of an earlier version, or a model whose
    frequencies depend on the length, is refused.

    Deviations: the paper's equation has the norm of the value after the output projection, here and in the class it is
    that of the value itself. The paper shares budgets among heads (`adakv` over this method does). A soft cap of the
    logits is ignored. The method is for prompts, so generated tokens come on top of the budget; with
    generated="within" each takes the place of the token with the lowest score. Of a later prompt, only its own queries
    are the sample.
    """

    name = "expected_attention"
    title = "Expected attention"
    paper = "arXiv 2510.00636"
    score_name = "expected attention times value norm"
    heads_may_differ = True
    expected_failures = {
        **Eviction.expected_failures,
        "the_budget_holds": "the method compresses prompts; generated tokens come on top, as in its published class",
    }
    presets = {"paper": {}}
    sliders = (
        Slider("future", "future", (64, 128, 256, 512, 1024, 2048), "positions of the queries that are expected"),
        Slider("sinks", "sinks", (0, 1, 2, 4, 8, 16, 32), "first tokens, always kept"),
    )

    generated: Generated = "on_top"
    sinks: int = 4
    future: int = whole(512, 1)
    spread: Literal["covariance", "none"] = one_of("covariance", ("covariance", "none"))
    value_norm: Literal["l2", "none"] = one_of("l2", ("l2", "none"))
    epsilon: float = number(0, 0)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> EvictionState:
        """The state with the prompt's best tokens; O(L·D²) for each query head, of covariance and scores."""
        return super().build(layer, queries, keys, values)

    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """The expected attention of the tokens after the sinks, times the norm of their values; 0 for sinks."""
        layer = state.layer
        ranked = keys[:, :, self.sinks :]
        if not ranked.shape[2]:
            return torch.zeros(state.kept.shape, device=keys.device)
        logits = self._expected_logits(state, queries, ranked)
        if state.visible is not None:
            pads = ~to_selection_heads(state.visible[..., self.sinks :], logits.shape[1])
            logits.masked_fill_(pads, -torch.inf)
        scores = reduce_group(logits.softmax(-1), layer.n_kv_heads, self.group)
        if self.value_norm == "l2":
            values = state.tokens.take(state.kept[..., self.sinks :])[1]
            scores = (scores + self.epsilon) * values.float().norm(dim=-1)
        return pad(scores, (self.sinks, 0))

    def _expected_logits(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """The logarithm of the expected exp(logit) of keys [B, R, N, D] for a future query: float32 [B, Q, N]."""
        scale, by_row = state.layer.scale, keys.float()
        mean, covariance = (part.unflatten(1, (keys.shape[1], -1)) for part in self._future_queries(state, queries))
        logits: Tensor = (mean @ by_row.mT) * scale  # [B, R, G, N]
        if self.spread == "covariance":
            for head in range(mean.shape[2]):  # one at a time: [B, R, N, D] in memory, not [B, Q, N, D]
                logits[:, :, head] += ((by_row @ covariance[:, :, head]) * by_row).sum(-1) * (scale**2 / 2)
        return logits.flatten(1, 2)

    def _future_queries(self, state: EvictionState, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B, Q, D] and covariance [B, Q, D, D] of queries [B, Q, n, D], turned to the next positions."""
        rotation = state.layer.known_rotation(self.name)
        new = queries.shape[2]
        first = state.length - new
        plain = unrotate(queries, torch.arange(first, state.length, device=queries.device), rotation)
        plain = plain[:, :, min(max(self.sinks - first, 0), new - 1) :]  # the queries of sinks are outliers
        mean = plain.mean(2)
        centred = plain - mean[:, :, None]
        covariance = centred.mT @ centred / plain.shape[2]
        angle = angles(torch.arange(state.length, state.length + self.future, device=queries.device), rotation)
        cos, sin = (part.mean(0) * rotation.scaling for part in (angle.cos(), angle.sin()))
        turned = turn(turn(covariance, cos, sin, rotation).mT, cos, sin, rotation)  # of rows, then of columns
        return turn(mean, cos, sin, rotation), turned
