"""SparQ Attention: approximate scores from the few channels in which the query is largest in magnitude."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.channels import ChannelCache
from ..trace.styles import Style
from .attention import attention_weights
from .base import LayerContext, Method, State
from .fields import number
from .ranking import Ranking, of_tokens
from .selection import Group, Selection, ValueCorrection, reduce_group, to_selection_heads
from .state import tensor_bytes

TINY = 1e-30  # avoids 0 / 0 in the coverage of an all-zero query


@dataclass
class SparQState(State):
    """A state with all keys stored channel by channel and, for the value correction, the sum [B, H, D] of all values.

    A step reads `rank` channels per selection head, at most `channels_read` channels per KV head.
    """

    auxiliary = ("channels",)

    channels: ChannelCache
    value_sum: Tensor | None
    rank: int
    channels_read: int

    def read_bytes(self) -> int:
        """Bytes of the channels that one step reads of all keys, and of the sum of values."""
        n_channels = self.channels.buffer.shape[2]
        return tensor_bytes(self.channels) * self.channels_read // n_channels + tensor_bytes(self.value_sum)


@dataclass
class SparQ(Method[SparQState]):
    """Scores all tokens by the channels in which the query is largest, and attends to the best.

    Source: SparQ Attention (arXiv 2312.04985), section 4, algorithm 1. A step reads the `rank` channels with the
    largest |q| (an int, or a share of the head dimension as a float in (0, 1]) of all keys. Approximate weights are
    softmax(q·k over these channels / √(L1 coverage · D)); the coverage is their share of the sum of |q|. With the mean
    value correction the output is α · attention output + (1 − α) · mean of all values, where α is the sum of the
    approximate weights of the attended tokens. The query heads of a KV head share the channels, chosen by the sum of
    their |q|, and `group` reduces their approximate weights ("sum" in the paper); with "each", channels are chosen per
    query head. `mean_value` None is the paper's rule: the correction only if each query head has its own KV head,
    because with grouped queries it hurt the authors' results (with SmolLM2-135M, three queries per group, it helps a
    little). The share `local_share` of the attended tokens, at least one, are the most recent ones (a quarter in the
    paper's experiments). Keys are stored twice, as in the paper (appendix), so that single channels can be read. As in
    the paper, a step scores all tokens and attends to a fixed number: generated ones count within the budget.

    The paper reports ranks of d/8 to d/2; d/4 is the default here. Presets: "official" is the published GPU code at
    compression 8: d/8 channels, no local window, a choice per query head, always with correction (its budget is 1/16 of
    the length). "pqcache" is the baseline of PQCache (arXiv 2407.12820, section 4.1.3): one channel, 1/128 of the keys
    at D = 128. Deviation: logits use the model's scale instead of 1/√D, and its soft-cap.

    Raises InvalidInputError for a rank that is invalid for any head dimension, and at build for one above the layer's.
    """

    name = "sparq"
    title = "SparQ Attention"
    paper = "arXiv 2312.04985"
    score_name = "approximate attention weight"
    kind = "retrieval"
    style = Style(dash="dash", symbol="square-open")
    needs_queries = False
    least_recent = 1
    builds_for_any_budget = True
    presets = {
        "paper": {},
        "official": {"rank": 0.125, "local_share": 0.0, "group": "each", "mean_value": True},
        "pqcache": {"rank": 1},
    }

    group: Group = "sum"
    rank: int | float = 0.25
    local_share: float = number(0.25, 0, 1)
    mean_value: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.rank >= 1 if type(self.rank) is int else type(self.rank) is float and 0 < self.rank <= 1):
            wanted = "an int >= 1, or a share of the head dimension in (0, 1]"
            raise InvalidInputError(f"{self.name}: rank", repr(self.rank), wanted)
        if not isinstance(self.mean_value, bool | None):
            raise InvalidInputError(f"{self.name}: mean_value", repr(self.mean_value), "True, False or None")

    def recent_window(self, state: State) -> int:
        """The larger of the recent window and the local share of the step's budget; at least the newest token."""
        budget = self.step_budget(state)
        return max(self.always_recent, min(math.floor(self.local_share * budget), budget - self.sinks))

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> SparQState:
        """The state with a copy of all keys, channel by channel; O(L·D)."""
        rank = self.rank if isinstance(self.rank, int) else max(1, math.floor(self.rank * layer.head_dim))
        if rank > layer.head_dim:
            raise InvalidInputError(
                f"{self.name}: rank", rank, f"1 to {layer.head_dim}, the head dimension of layer {layer.index}"
            )
        corrects = layer.n_heads == layer.n_kv_heads if self.mean_value is None else self.mean_value
        return SparQState(
            layer,
            keys.shape[2],
            keys.shape[2],
            channels=ChannelCache.of(keys),
            value_sum=values.sum(2, dtype=torch.float32) if corrects else None,
            rank=rank,
            channels_read=min(layer.head_dim, rank * layer.selection_heads(self.group) // layer.n_kv_heads),
        )

    def extend(self, state: SparQState, queries: Tensor, keys: Tensor, values: Tensor) -> SparQState:
        """The state with the new tokens' channels and values added."""
        state.append(keys, values)
        state.channels.append(keys)
        if state.value_sum is not None:
            state.value_sum = state.value_sum + values.sum(2, dtype=torch.float32)
        return state

    def choose(self, state: SparQState, queries: Tensor) -> Selection:
        """Sinks, the tokens with the largest approximate weights, and the local window, with the value correction."""
        weights = self._approximate_weights(state, queries.float())  # [B, Q, L]
        scores = reduce_group(weights, state.layer.n_kv_heads, self.group)
        selection = self.with_sinks_and_recent(state, self.best_tokens(state, scores))
        if state.value_sum is None:
            return selection
        attended = weights.gather(-1, to_selection_heads(selection.indices, weights.shape[1])).sum(-1)  # [B, Q]
        correction = ValueCorrection(state.value_sum / state.length, (1 - attended).clamp(min=0))
        return replace(selection, value_correction=correction)

    def ranking(self, state: SparQState, queries: Tensor, keys: Tensor) -> Ranking:
        """The approximate weights of the tokens between sinks and local window, and the exact ones."""
        layer, end = state.layer, self.recent_start(state)
        exact = attention_weights(queries, keys, layer.scale, layer.softcap)
        weights, exact = (
            reduce_group(each, layer.n_kv_heads, self.group)
            for each in (self._approximate_weights(state, queries.float()), exact)
        )
        return of_tokens(weights[..., self.sinks : end], exact, self.sinks)

    def _approximate_weights(self, state: SparQState, queries: Tensor) -> Tensor:
        """Softmax weights [B, Q, L] of queries [B, Q, D] over the channels in which they are largest."""
        layer, size = state.layer, queries.abs()
        shared = size if self.group == "each" else size.unflatten(1, (layer.n_kv_heads, -1)).sum(2)  # [B, R, D]
        largest = shared.argsort(dim=-1, descending=True, stable=True)[..., : state.rank]  # [B, R, r]
        channels = to_selection_heads(largest, layer.n_heads)  # [B, Q, r]
        coverage = (size.gather(-1, channels).sum(-1) + TINY) / (size.sum(-1) + TINY)  # [B, Q]
        scaled = queries.gather(-1, channels) * (layer.scale * coverage.rsqrt()[..., None])
        logits = scaled.unflatten(1, (largest.shape[1], -1)) @ state.channels.pick(largest).float()  # [B, R, Q/R, L]
        weights: Tensor = softcap_(logits, layer.softcap).softmax(-1).flatten(1, 2)
        return weights
