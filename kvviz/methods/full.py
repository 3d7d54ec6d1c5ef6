"""Full attention: every token, every step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..trace.styles import Style
from .base import LayerContext, Method, State
from .selection import Selection, attend_all


@dataclass
class Full(Method):
    """Attends everything; the reference for answers and for time. Its budget has no effect."""

    name = "full"
    title = "Full attention"
    paper = "arXiv 1706.03762"
    kind = "exact"
    style = Style("muted", "dot", "line-ew-open")
    needs_queries = False
    ignores_budget = True

    def is_dense(self, layer: int) -> bool:
        """True: every layer runs the model's own attention."""
        return True

    def budget_tokens(self, prompt_length: int) -> int:
        """The whole prompt."""
        return prompt_length

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """A state that only counts tokens; O(1)."""
        return State(layer, keys.shape[2], keys.shape[2])

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> State:
        """Counts the new tokens."""
        state.length += keys.shape[2]
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """All positions."""
        rows = state.layer.rows(self.group)
        return attend_all(state.length, queries.shape[0], rows, queries.device, details=state.layer.details)
