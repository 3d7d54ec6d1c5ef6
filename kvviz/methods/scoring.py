"""`ScoringMethod`, the base class of methods that score tokens: a subclass implements `scores` only."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from .attention import attention_weights
from .base import Kind, LayerContext, Method, S
from .ranking import Ranking, of_tokens
from .selection import Selection, reduce_group, to_selection_heads
from .state import TokenState


@dataclass
class KeyState(TokenState):
    """A state with access to all keys, since every step scores all of them."""

    def read_bytes(self) -> int:
        """Bytes of all keys."""
        return self.tokens.key_bytes


@dataclass
class ScoringMethod(Method[S]):
    """A method that scores tokens and attends to the best, to the sinks and to the recent window.

    A subclass implements `scores`. Its state is a KeyState by default: `state.tokens.keys` [B, H, L, D] has all keys.
    """

    kind: ClassVar[Kind] = "retrieval"
    needs_queries = False

    @abstractmethod
    def scores(self, state: S, queries: Tensor) -> Tensor:
        """Scores [B, R, n] of the tokens per selection head, for the queries [B, Q, D] of a step.

        [B, H, n] is allowed too: the query heads of a KV head then share the scores. The n tokens are all
        `state.length` tokens, or only those between sinks and recent window.
        """

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> S:
        """A state with access to the keys; O(1)."""
        length, tokens = keys.shape[2], layer.token_cache(keys, values)
        return KeyState(layer, length, length, tokens)  # type: ignore[return-value]  # S is KeyState by default

    def choose(self, state: S, queries: Tensor) -> Selection:
        """The sinks, the tokens with the best scores, and the recent window."""
        return self.with_sinks_and_recent(state, self.best_tokens(state, self.scores(state, queries)))

    def ranking(self, state: S, queries: Tensor, keys: Tensor) -> Ranking:
        """The scores of the tokens between sinks and recent window, and their exact attention weights."""
        layer, end = state.layer, self.recent_start(state)
        scores = to_selection_heads(self.scores(state, queries), layer.selection_heads(self.group))
        if scores.shape[-1] == state.length:
            scores = scores[..., self.sinks : end]
        exact = reduce_group(attention_weights(queries, keys, layer.scale, layer.softcap), layer.n_kv_heads, self.group)
        return of_tokens(scores, exact, self.sinks)
