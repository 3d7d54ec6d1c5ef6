"""H2O: the tokens that gathered the most attention so far, and the most recent ones."""

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
    """Beside what is kept, the attention that it `received` so far: [B, Q, K] float32, summed over all queries."""

    received: Tensor = field(init=False)

    def __post_init__(self) -> None:
        batch, _, count = self.kept.shape
        self.received = torch.zeros((batch, self.layer.n_heads, count), device=self.kept.device)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keep new tokens, which have received nothing yet."""
        super().append(keys, values)
        self.received = pad(self.received, (0, keys.shape[2]))

    def keep(self, places: Tensor, scores: Tensor | None) -> None:
        """As every eviction; forgets what the dropped tokens received."""
        super().keep(places, scores)
        self.received = self.received.gather(-1, to_selection_heads(places, self.received.shape[1]))

    def read_bytes(self) -> int:
        """Bytes of the attention received, which every step adds to."""
        return tensor_bytes(self.received)


@dataclass
class H2O(Eviction[H2OState]):
    """Keeps heavy hitters, the tokens with the largest sum of attention weights so far, and a recent window.

    `recent_share` of the budget is the window (at least `recent` tokens), half by default. Sums run over every query of
    the prompt and go on while decoding, over the tokens that are kept. They are held for each query head and reduced
    over the group when tokens are chosen. Source: H2O (arXiv 2306.14048), section 4 and algorithm 1.

    Building takes every query of the prompt: O(L²·D) operations, in blocks, beside the prefill's own attention, and
    until then the memory of the layer's queries. A decode step reads the kept keys once more.

    Deviation: the paper's cache has a fixed size, which every generated token costs an older one. Here, generated
    tokens come on top of the budget, as for every method, so that all attend as many tokens at a step, and nothing is
    dropped while decoding. `fixed_size` (preset="fixed") is the paper's algorithm: each step first drops the token with
    the lowest sum outside the window, the later one of equals, and then attends `budget` tokens, its own among them; a
    later prompt is not part of the paper. Sums are not divided by the number of queries that saw a token, as in the
    paper, which favours early tokens.
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
        """`recent`, and at least one token where the size is fixed: the step's own has to fit into the cache."""
        return max(self.recent, int(self.fixed_size))

    def step_budget(self, state: State) -> int:
        """Tokens that a head may attend to at this step; the budget alone where the size is fixed."""
        return self.budget_tokens(state.prompt_length) if self.fixed_size else super().step_budget(state)

    def window(self, state: State) -> int:
        """The recent share of the budget, as far as the sinks leave room for it."""
        budget = self.budget_tokens(state.prompt_length)
        return max(self.always_recent, min(int(self.recent_share * budget), budget - self.sinks))

    def recent_window(self, state: H2OState) -> int:
        """The prompt's window and every token generated since; the window alone where the size is fixed."""
        return self.window(state) if self.fixed_size else super().recent_window(state)

    def extend(self, state: H2OState, queries: Tensor, keys: Tensor, values: Tensor) -> H2OState:
        """The state with the new tokens and the attention that they give; a fixed size drops others for them."""
        layer = state.layer
        for token in range(keys.shape[2]):
            now = slice(token, token + 1)
            if self.fixed_size:
                scores = reduce_group(state.received, layer.n_kv_heads, self.group)
                self.keep_best(state, scores, self.step_budget(state) - 1, self.window(state) - 1)
            state.append(keys[:, :, now], values[:, :, now])
            of_kept = state.tokens.take_keys(state.kept)
            state.received += attention_received(queries[:, :, now], of_kept, layer.scale, layer.softcap)
        return state

    def rank(self, state: H2OState, queries: Tensor, keys: Tensor) -> Tensor:
        """The attention received so far, the prompt's added to it."""
        layer = state.layer
        state.received += attention_received(queries, keys, layer.scale, layer.softcap)
        return reduce_group(state.received, layer.n_kv_heads, self.group)
