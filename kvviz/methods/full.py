"""Full attention: every step attends to all tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..trace.styles import Style
from .base import Kind, Method, State


@dataclass
class Full(Method[State]):
    """Full attention to all tokens: the reference for answers and time. The budget has no effect."""

    name = "full"
    title = "Full attention"
    paper = "arXiv 1706.03762"
    style = Style("muted", "dot", "line-ew-open")
    kind: ClassVar[Kind] = "exact"
    needs_queries = False
    ignores_budget = True

    def is_dense(self, layer: int) -> bool:
        """True: every layer runs the model's own attention."""
        return True

    def budget_tokens(self, prompt_length: int) -> int:
        """The whole prompt."""
        return prompt_length
