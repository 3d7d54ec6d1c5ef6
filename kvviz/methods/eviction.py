"""What eviction methods share: the tokens that stay, chosen once at the end of each prompt by one function, `rank`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .base import LayerContext, Method
from .selection import Selection, add_sinks_and_recent, positions, take_tokens, to_selection_heads
from .state import TokenState

E = TypeVar("E", bound="EvictionState")


@dataclass
class EvictionState(TokenState):
    """Beside the counts, the positions `kept` [B, R, K] int64 of each selection head, ascending.

    `scores` [B, R, K] float32 is what each was ranked by when it was chosen, NaN where it stayed without being ranked;
    None where the layer's context asks for no details.
    """

    kept: Tensor
    scores: Tensor | None

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keep new tokens, keys and values [B, H, n, D], without ranking them."""
        batch, heads, _ = self.kept.shape
        new = positions(self.length, self.length + keys.shape[2], batch, heads, keys.device)
        self.kept = torch.cat([self.kept, new], dim=-1)
        if self.scores is not None:
            self.scores = pad(self.scores, (0, keys.shape[2]), value=torch.nan)
        super().append(keys, values)

    def keep(self, places: Tensor, scores: Tensor | None) -> None:
        """Drop all but the kept tokens at these places [B, R, K'] among them, which were ranked by these scores."""
        self.kept = self.kept.gather(-1, places)
        self.scores = scores

    def read_bytes(self) -> int:
        """None: a step attends to what is kept, and chooses nothing."""
        return 0


@dataclass
class Eviction(Method[E]):
    """A method that ranks a prompt's tokens at its end and drops all but the best, for good.

    A subclass says how tokens rank (`rank`), and how many of the last ones stay without being ranked (`window`) where
    these are not `recent`. Sinks stay too. Tokens generated later are attended to in full. A later prompt of the
    session ranks what was kept beside its own tokens, by its own queries, and the budget holds for all of them
    together.
    """

    kind = "eviction"
    expected_failures = {"extension_equals_one_build": "what was dropped at the prompt's end cannot come back"}
    state_class: ClassVar[type[EvictionState]] = EvictionState

    def rank(self, state: E, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, R, N], or [B, H, N], of the tokens that are kept so far, from a prompt's queries [B, Q, n, D].

        keys [B, H or R, N, D] are those tokens' own; the last n of them are the prompt's.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rank")

    def window(self, state: E) -> int:
        """How many of a prompt's last tokens stay without being ranked."""
        return self.recent

    def recent_window(self, state: E) -> int:
        """The prompt's window and every token generated since."""
        return self.window(state) + state.generated

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> E:
        """The state with the prompt's best tokens; O(n·L·D) for the n queries that rank them, all L for H2O."""
        state = self.whole(layer, keys, values)
        self.keep_best(state, self.rank(state, queries, keys), self.step_budget(state), self.window(state))
        return state

    def continue_prompt(self, state: E, queries: Tensor, keys: Tensor, values: Tensor) -> E:
        """The state with the best of what was kept and of the later prompt's tokens."""
        state.append_prompt(keys, values)
        scores = self.rank(state, queries, state.tokens.take_keys(state.kept))
        self.keep_best(state, scores, self.step_budget(state), self.window(state))
        return state

    def select(self, state: E, queries: Tensor) -> Selection:
        """Every token that is kept."""
        if state.scores is None:
            return Selection(state.kept)
        return Selection(state.kept, torch.full_like(state.kept, -1, dtype=torch.int32), state.scores)

    def keeps(self, state: E) -> Tensor:
        """What is kept, for a KV head whose query heads choose each for itself the union of theirs."""
        heads = state.layer.n_kv_heads
        return state.kept if state.kept.shape[1] == heads else union(state.kept, heads)

    def whole(self, layer: LayerContext, keys: Tensor, values: Tensor, kept: Tensor | None = None) -> E:
        """The state of a prompt before anything is dropped, or of its positions `kept` [B, R, K]."""
        batch, _, length, _ = keys.shape
        if kept is None:
            kept = positions(0, length, batch, layer.selection_heads(self.group), keys.device)
        scores = torch.full_like(kept, torch.nan, dtype=torch.float32) if layer.details else None
        tokens = layer.token_cache(keys, values)
        return self.state_class(layer, length, length, tokens, kept, scores)  # type: ignore[return-value]  # it is E's

    def keep_best(self, state: E, scores: Tensor, count: int, window: int) -> None:
        """Drop all but `count` of the kept tokens: the sinks, the last `window`, and between them the best by scores.

        scores [B, R or H, N] rank the tokens kept so far.
        """
        _, heads, total = state.kept.shape
        if count >= total:
            return
        between = to_selection_heads(scores, heads)[..., self.sinks : total - window]
        free = count - self.sinks - window
        chosen = take_tokens(between, free, start=self.sinks, details=state.layer.details)
        staying = add_sinks_and_recent(chosen, self.sinks, (total - window, total))
        state.keep(staying.indices, staying.scores)


def union(kept: Tensor, heads: int) -> Tensor:
    """The different positions of each KV head's query heads: [B, Q, K] -> [B, H, K'], ascending, -1 pads at the end."""
    ordered = kept.unflatten(1, (heads, -1)).flatten(2).sort(-1).values  # [B, H, G * K]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    beyond = torch.iinfo(ordered.dtype).max  # sorts behind every position
    width = int(first.sum(-1).max())
    different: Tensor = ordered.masked_fill(~first, beyond).sort(-1).values[..., :width]
    return different.masked_fill(different == beyond, -1)
