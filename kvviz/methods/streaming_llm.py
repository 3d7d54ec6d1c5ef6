"""StreamingLLM: attention sinks and the most recent tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..trace.styles import Style
from .base import LayerContext, Method, State
from .selection import Selection
from .sliders import Slider


@dataclass
class StreamingState(State):
    """A state that only counts tokens: the choice depends on positions alone."""

    batch: int
    device: torch.device


@dataclass
class StreamingLLM(Method[StreamingState]):
    """Keeps attention sinks and a recent window, and drops all other tokens.

    Source: StreamingLLM (arXiv 2309.17453), section 3.2. Deviation: the paper renumbers positions inside the window;
    here every token keeps the RoPE position with which it was cached. The window takes the whole budget after the
    sinks; as in the paper, each generated token takes the place of the oldest one in it, within the budget.
    """

    name = "streaming_llm"
    title = "StreamingLLM"
    paper = "arXiv 2309.17453"
    kind = "eviction"
    style = Style("#56B4E9", "dot", "x")
    sliders = (Slider("sinks", "sinks", (0, 1, 2, 4, 8, 16, 32, 64), "first tokens, always attended to"),)
    needs_queries = False

    sinks: int = 4

    def recent_window(self, state: State) -> int:
        """The step's budget without the sinks."""
        return self.step_budget(state) - self.sinks

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> StreamingState:
        """A state that only counts tokens; O(1)."""
        return StreamingState(layer, keys.shape[2], keys.shape[2], keys.shape[0], keys.device)

    def continue_prompt(self, state: StreamingState, queries: Tensor, keys: Tensor, values: Tensor) -> StreamingState:
        """The state with the later prompt's tokens counted as prompt."""
        state.append_prompt(keys, values)
        return state

    def choose(self, state: StreamingState, queries: Tensor) -> Selection:
        """The sinks and the most recent tokens."""
        return self.with_sinks_and_recent(state, self.no_tokens(state, queries))

    def keeps(self, state: StreamingState) -> Tensor | None:
        """The sinks and the recent window; the window only moves forward, so no other token is needed again."""
        if state.length <= self.step_budget(state):
            return None
        first = torch.arange(self.sinks, device=state.device)
        last = torch.arange(self.recent_start(state), state.length, device=state.device)
        return torch.cat([first, last]).expand(state.batch, state.layer.n_kv_heads, -1)
