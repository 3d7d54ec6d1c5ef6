"""StreamingLLM: the first tokens and the most recent ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..trace.styles import Style
from .base import LayerContext, Method, State
from .selection import Selection, attend_all, surround
from .sliders import Slider


@dataclass
class StreamingState(State):
    """Counts alone: the choice depends on positions."""

    batch: int
    device: torch.device


@dataclass
class StreamingLLM(Method):
    """Attention sinks and a recent window; nothing else is ever recalled.

    Source: StreamingLLM (arXiv 2309.17453), section 3.2. Deviation: the paper renumbers positions inside the window;
    here every token keeps the RoPE position it was cached with. The window fills what the budget leaves after the
    sinks and grows with the generated tokens, which the budget does not count.
    """

    name = "streaming_llm"
    title = "StreamingLLM"
    paper = "arXiv 2309.17453"
    kind = "eviction"
    style = Style("#56B4E9", "dot", "x")
    sliders = (Slider("sinks", "sinks", (0, 1, 2, 4, 8, 16, 32, 64), "first tokens, always attended"),)
    needs_queries = False

    sinks: int = 4

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """A state that only counts tokens; O(1)."""
        return StreamingState(layer, keys.shape[2], keys.shape[2], keys.shape[0], keys.device)

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """Counts the new tokens."""
        state.length += keys.shape[2]
        return state

    def keeps(self, state: State) -> Tensor | None:
        """The sinks and the recent window; the window only moves on, so that nothing else is ever attended again."""
        window = self.allowance(state) - self.sinks
        if state.length <= window + self.sinks:
            return None
        state = cast(StreamingState, state)
        first = torch.arange(self.sinks, device=state.device)
        last = torch.arange(state.length - window, state.length, device=state.device)
        return torch.cat([first, last]).expand(state.batch, state.layer.n_kv_heads, -1)

    def continue_prompt(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """Counts the later prompt's tokens as prompt."""
        state.length += keys.shape[2]
        state.prompt_length = state.length
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """The sinks and the most recent tokens."""
        everything = self.everything(state, queries)
        if everything is not None:
            return everything
        layer, start = state.layer, state.length - self.recent_window(state)
        nothing = attend_all(0, queries.shape[0], layer.rows(self.group), queries.device, details=layer.details)
        return surround(nothing, before=self.sinks, after=(start, state.length))

    def recent_window(self, state: State) -> int:
        """All that the sinks leave of the allowance."""
        return self.allowance(state) - self.sinks
