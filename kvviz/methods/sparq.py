"""SparQ Attention: approximate scores from the few channels in which the query is largest."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor

from ..errors import InvalidInputError
from ..offload.channels import ChannelCache
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .fields import number
from .selection import Group, Selection, ValueCorrection, reduce_group, to_selection_heads
from .state import tensor_bytes

TINY = 1e-30  # keeps the coverage of a query of zeros defined


@dataclass
class SparQState(State):
    """Beside the counts, every key channel by channel and, for the value correction, the sum [B, H, D] of all values.

    A step reads at most `channels_read` channels of a KV head, `rank` for each selection head.
    """

    auxiliary = ("channels",)

    channels: ChannelCache
    value_sum: Tensor | None
    rank: int
    channels_read: int

    def read_bytes(self) -> int:
        """Bytes of the channels that one step reads of every key, and of the mean value."""
        every = self.channels.buffer.shape[2]
        return self.channels.stored_bytes * self.channels_read // every + tensor_bytes(self.value_sum)


@dataclass
class SparQ(Method[SparQState]):
    """Scores every token by the channels in which the query is largest, and attends the best.

    Source: SparQ Attention (arXiv 2312.04985), section 4, algorithm 1. The `rank` channels with the largest |q| (an
    int, or a share of the head dimension as a float in (0, 1]) are read of every key; approximate weights are
    softmax(q·k over them / √(L1 coverage · D)), the coverage being the share of |q| that lies in them. With the mean
    value correction the output is α · attended + (1 − α) · mean of all values, where α is the approximate weight of
    what was attended. Query heads of a KV head share the channels, chosen by their summed |q|, and their approximate
    weights are reduced by `group` ("sum" in the paper); with "each" every query head reads channels of its own.
    `mean_value` None is the paper's rule: the correction where every query head has its own KV head, none with grouped
    queries, where the authors found it to hurt (with SmolLM2-135M, three queries a group, it helps a little). The most
    recent tokens are `local_share` of what is attended (a quarter in the experiments of the paper), at least the newest
    one. Keys are kept twice, as in the paper (appendix), so that a channel can be read alone.

    The paper fixes no rank; it reports d/8 to d/2, and d/4 is the default here. Presets: "official" is the published
    GPU code at compression 8: d/8 channels, no local window, every query head for itself, the correction always (its
    budget is 1/16 of the length). "pqcache" is the baseline of PQCache (arXiv 2407.12820, section 4.1.3): one channel,
    1/128 of the keys at D = 128. Deviation: logits use the model's own scale in place of 1/√D, and its soft-cap.

    Raises InvalidInputError for a rank that no head dimension allows, and at build for one beyond the layer's own.
    """

    name = "sparq"
    title = "SparQ Attention"
    paper = "arXiv 2312.04985"
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
        """The recent window or the local share of the step's budget, whichever is more; at least the newest token."""
        budget = self.step_budget(state)
        return max(self.always_recent, min(math.floor(self.local_share * budget), budget - self.sinks))

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> SparQState:
        """Every key a second time, channel by channel; O(L·D)."""
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
        """Adds the new tokens' channels and values."""
        state.append(keys, values)
        state.channels.append(keys)
        if state.value_sum is not None:
            state.value_sum = state.value_sum + values.sum(2, dtype=torch.float32)
        return state

    def choose(self, state: SparQState, queries: Tensor) -> Selection:
        """Sinks, the tokens of the largest approximate weights, and the local window; with the value correction."""
        weights = self._approximate_weights(state, queries.float())  # [B, Q, L]
        scores = reduce_group(weights, state.layer.n_kv_heads, self.group)
        selection = self.with_sinks_and_recent(state, self.best_tokens(state, scores))
        if state.value_sum is None:
            return selection
        attended = weights.gather(-1, to_selection_heads(selection.indices, weights.shape[1])).sum(-1)  # [B, Q]
        correction = ValueCorrection(state.value_sum / state.length, (1 - attended).clamp(min=0))
        return replace(selection, value_correction=correction)

    def _approximate_weights(self, state: SparQState, queries: Tensor) -> Tensor:
        """Softmax weights [B, Q, L] of queries [B, Q, D] over the channels in which they are largest."""
        layer, size = state.layer, queries.abs()
        shared = size if self.group == "each" else size.unflatten(1, (layer.n_kv_heads, -1)).sum(2)  # [B, R, D]
        largest = shared.argsort(dim=-1, descending=True, stable=True)[..., : state.rank]  # [B, R, r]
        own = to_selection_heads(largest, layer.n_heads)  # [B, Q, r]
        coverage = (size.gather(-1, own).sum(-1) + TINY) / (size.sum(-1) + TINY)  # [B, Q]
        scaled = queries.gather(-1, own) * (layer.scale * coverage.rsqrt()[..., None])
        logits = scaled.unflatten(1, (largest.shape[1], -1)) @ state.channels.pick(largest).float()  # [B, R, Q/R, L]
        logits = softcap_(logits, layer.softcap)
        weights: Tensor = logits.softmax(-1).flatten(1, 2)
        return weights
