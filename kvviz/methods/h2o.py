"""H2O: the tokens with the largest accumulated attention, and the most recent ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..trace.styles import Style
from .attention import attention_received
from .eviction import Eviction, EvictionState, at_places
from .fields import number
from .selection import reduce_group, to_selection_heads
from .state import tensor_bytes


@dataclass
class H2OState(EvictionState):
    """A state with the accumulated attention `received` [B, Q, K] float32 of the kept tokens, summed over queries."""

    received: Tensor = field(init=False)

    def __post_init__(self) -> None:
        batch, _, count = self.kept.shape
        self.received = torch.zeros((batch, self.layer.n_heads, count), device=self.kept.device)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keep new tokens, whose accumulated attention is 0."""
        super().append(keys, values)
        self.received = pad(self.received, (0, keys.shape[2]))

    def keep(self, places: Tensor, scores: Tensor | None) -> None:
        """Keep only the tokens at these places, with their accumulated attention."""
        super().keep(places, scores)
        self.received = at_places(self.received, to_selection_heads(places, self.received.shape[1]), 0.0)

    def read_bytes(self) -> int:
        """Bytes of the accumulated attention, which every step updates."""
        return tensor_bytes(self.received)


@dataclass
class H2O(Eviction[H2OState]):
    """Keeps heavy hitters, the tokens with the largest accumulated attention, and a recent window.

    The window is the share `recent_share` of the budget, half by default, and at least `recent` tokens. Attention
    weights are summed over all queries of the prompt, and further while decoding, over the kept tokens. There is one
    sum per query head; sums are reduced over the group when tokens are chosen. Source: H2O (arXiv 2306.14048), section
    4 and algorithm 1.

    Building needs all queries of the prompt, which are kept until then: O(L²·D) operations, in blocks, in addition to
    the prefill's attention. A decode step reads the kept keys a second time.

    As in the paper, the cache has a fixed size: each step first drops the token with the lowest sum outside the window
    (the later one of equals), then attends to `budget` tokens, its own included: generated tokens count within it. With
    generated="on_top" nothing is dropped while decoding. The paper has no later prompts. As in the paper, sums are not
    divided by the number of queries that attended to a token, which favours early tokens.
    """

    name = "h2o"
    title = "H2O"
    paper = "arXiv 2306.14048"
    score_name = "accumulated attention"
    style = Style(dash="solid", symbol="circle-open")
    expected_failures: ClassVar[Mapping[str, str]] = {}
    state_class = H2OState
    keeps_votes = False
    heads_may_differ = True

    recent_share: float = number(0.5, 0, 1)

    def window(self, state: H2OState) -> int:
        """The recent share of the budget, limited to what the sinks leave."""
        budget = self.budget_tokens(state.prompt_length)
        return max(self.always_recent, min(int(self.recent_share * budget), budget - self.sinks))

    def standing(self, state: H2OState) -> Tensor:
        """The accumulated attention of the kept tokens, reduced over the group."""
        return reduce_group(state.received, state.layer.n_kv_heads, self.group)

    def observe(self, state: H2OState, queries: Tensor) -> None:
        """Accumulate the attention of the newest token's queries."""
        layer, kept_keys = state.layer, state.tokens.take_keys(state.kept)
        state.received += attention_received(queries, kept_keys, layer.scale, layer.softcap, visible=state.visible)

    def rank(self, state: H2OState, queries: Tensor, keys: Tensor) -> Tensor:
        """The accumulated attention, with that of the prompt added."""
        layer = state.layer
        state.received += attention_received(queries, keys, layer.scale, layer.softcap, visible=state.visible)
        return reduce_group(state.received, layer.n_kv_heads, self.group)
