"""What methods that score tokens share: such a method is one function, `scores`."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .base import Kind, LayerContext, Method, S
from .selection import Selection
from .state import TokenState, tensor_bytes


@dataclass
class KeyState(TokenState):
    """Beside the counts, where every key can be looked up, because a step scores all of them."""

    def read_bytes(self) -> int:
        """Bytes of every key."""
        return tensor_bytes(self.tokens.keys)


@dataclass
class ScoringMethod(Method[S]):
    """A method that scores tokens and attends to the best, beside sinks and recent window; a subclass has `scores`.

    By default its state is a KeyState: `state.tokens.keys` [B, H, L, D] are the keys of all tokens so far.
    """

    kind: ClassVar[Kind] = "retrieval"
    needs_queries = False

    @abstractmethod
    def scores(self, state: S, queries: Tensor) -> Tensor:
        """What tokens rank by for the queries [B, Q, D] of a step: [B, R, n] for each selection head.

        Also [B, H, n], where the query heads of a KV head share the scores. The n tokens are all `state.length` of
        them, or those between sinks and recent window alone.
        """

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> S:
        """A state that knows where the keys are; O(1)."""
        length, tokens = keys.shape[2], layer.token_cache(keys, values)
        return KeyState(layer, length, length, tokens)  # type: ignore[return-value]  # S is KeyState where this serves

    def choose(self, state: S, queries: Tensor) -> Selection:
        """Sinks, the tokens with the best scores, and the recent window."""
        return self.with_sinks_and_recent(state, self.best_tokens(state, self.scores(state, queries)))
