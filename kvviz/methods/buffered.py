"""`BufferedEviction`, the base class of methods that evict while generating, in rounds of a whole buffer of tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .eviction import E, Eviction
from .fields import whole


@dataclass
class BufferedEviction(Eviction[E]):
    """An eviction method that ranks the kept tokens anew whenever they fill the budget.

    Each such round drops `buffer` tokens at once, so that there is one round per `buffer` generated tokens. The buffer
    is part of the budget: no step attends to more than `budget` tokens, and a round leaves `budget` − `buffer` of them.
    The buffer has at most half of what sinks and window leave of the budget. A round also follows each prompt that the
    budget does not hold.

    A subclass implements `scores`; and `observe` if these depend on queries, which it then has to remember. With
    generated="on_top" there are rounds after prompts only, and each leaves `budget` tokens.
    """

    expected_failures: ClassVar[Mapping[str, str]] = {
        "extension_equals_one_build": "tokens dropped at the end of the prompt cannot come back"
    }
    keeps_votes = False

    buffer: int = whole(128, 1)

    @abstractmethod
    def scores(self, state: E, keys: Tensor) -> Tensor:
        """Scores [B, R, K], or [B, H, K], of the kept tokens; those of sinks and window are not looked at.

        keys [B, H or R, K, D] are their keys.
        """

    @property
    def reserved(self) -> int:
        """Sinks, the window, and one token that makes room for the next."""
        return super().reserved + 1

    def buffer_tokens(self, state: E) -> int:
        """The number of tokens that a round drops: `buffer`, or half of what sinks and window leave if that is less."""
        free = self.budget_tokens(state.prompt_length) - self.sinks - self.window(state)
        return max(min(self.buffer, free // 2), 1)

    def rank(self, state: E, queries: Tensor, keys: Tensor) -> Tensor:
        """The scores of the tokens kept so far; zeros if the budget holds all of them."""
        self.observe(state, queries)
        if state.kept.shape[-1] <= self.step_budget(state):
            return torch.zeros(state.kept.shape, device=keys.device)
        return self.scores(state, keys)

    def extend(self, state: E, queries: Tensor, keys: Tensor, values: Tensor) -> E:
        """The state with the new tokens; a full budget is first ranked and relieved of `buffer` tokens."""
        for token in range(keys.shape[2]):
            now = slice(token, token + 1)
            if self.generated == "within" and state.kept.shape[-1] >= self.step_budget(state):
                self._drop(state, self.scores(state, state.tokens.take_keys(state.kept)))
            state.append(keys[:, :, now], values[:, :, now])
            self.observe(state, queries[:, :, now])
        return state

    def _keep_ranked(self, state: E, scores: Tensor) -> None:
        """Drop tokens of a prompt if the budget does not hold them all."""
        if state.kept.shape[-1] > self.step_budget(state):
            self._drop(state, scores)

    def _drop(self, state: E, scores: Tensor) -> None:
        """Keep the best tokens by their scores, `buffer` fewer than the budget if generated tokens are within it."""
        room = self.buffer_tokens(state) if self.generated == "within" else 0
        self.keep_best(state, scores, self.step_budget(state) - room, self.window(state))
