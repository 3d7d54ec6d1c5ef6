"""H2O: the tokens with the largest accumulated attention, and the most recent ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..trace.styles import Style
from .attention import attention_received
from .base import State
from .eviction import Eviction, EvictionState
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
        self.received = self.received.gather(-1, to_selection_heads(places, self.received.shape[1]))

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

    Deviation: the paper's cache has a fixed size: each generated token replaces an older one. Here generated tokens
    come on top of the budget, as for every method, so that all methods attend to equally many tokens, and nothing is
    dropped while decoding. `fixed_size` (preset="fixed") is the paper's algorithm: each step first drops the token with
    the lowest sum outside the window (the later one of equals), then attends to `budget` tokens, its own included. The
    paper has no later prompts. As in the paper, sums are not divided by the number of queries that attended to a token,
    which favours early tokens.
    """

    name = "h2o"
    title = "H2O"
    paper = "arXiv 2306.14048"
    style = Style(dash="solid", symbol="circle-open")
    presets = {"paper": {}, "fixed": {"fixed_size": True}}

    state_class = H2OState

    recent_share: float = number(0.5, 0, 1)
    fixed_size: bool = False

    @property
    def always_recent(self) -> int:
        """`recent`, but at least one token if the size is fixed: the step's own token must fit into the cache."""
        return max(self.recent, int(self.fixed_size))

    def step_budget(self, state: State) -> int:
        """Budget of this step; without the generated tokens if the size is fixed."""
        return self.budget_tokens(state.prompt_length) if self.fixed_size else super().step_budget(state)

    def window(self, state: State) -> int:
        """The recent share of the budget, limited to what the sinks leave."""
        budget = self.budget_tokens(state.prompt_length)
        return max(self.always_recent, min(int(self.recent_share * budget), budget - self.sinks))

    def recent_window(self, state: H2OState) -> int:
        """The prompt's window and all tokens generated since; only the window if the size is fixed."""
        return self.window(state) if self.fixed_size else super().recent_window(state)

    def extend(self, state: H2OState, queries: Tensor, keys: Tensor, values: Tensor) -> H2OState:
        """The state with the new tokens and their attention added; if the size is fixed, older tokens are dropped."""
        layer = state.layer
        for token in range(keys.shape[2]):
            now = slice(token, token + 1)
            if self.fixed_size:
                scores = reduce_group(state.received, layer.n_kv_heads, self.group)
                self.keep_best(state, scores, self.step_budget(state) - 1, self.window(state) - 1)
            state.append(keys[:, :, now], values[:, :, now])
            kept_keys = state.tokens.take_keys(state.kept)
            state.received += attention_received(queries[:, :, now], kept_keys, layer.scale, layer.softcap)
        return state

    def rank(self, state: H2OState, queries: Tensor, keys: Tensor) -> Tensor:
        """The accumulated attention, with that of the prompt added."""
        layer = state.layer
        state.received += attention_received(queries, keys, layer.scale, layer.softcap)
        return reduce_group(state.received, layer.n_kv_heads, self.group)
