"""`Eviction`, the base class of methods that evict tokens at the end of each prompt: a subclass implements `rank`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .base import LayerContext, Method
from .selection import Selection, add_sinks_and_recent, positions, take_tokens, to_selection_heads
from .state import TokenState

E = TypeVar("E", bound="EvictionState")

UNRANKED = -torch.inf  # below all scores of a prompt


@dataclass
class EvictionState(TokenState):
    """A state with the kept positions `kept` [B, R, K] int64 of each selection head, ascending.

    Heads that keep fewer tokens than others have pads of -1 before the window (AdaKV).

    `scores` [B, R, K] float32 is the score with which each token was chosen, NaN if it was not ranked; None if the
    layer's context does not ask for details. `votes` [B, R, K] float32 rank the tokens while decoding, UNRANKED if they
    came after the prompt; None if no token is dropped then.
    """

    kept: Tensor
    scores: Tensor | None
    votes: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keep new tokens, keys and values [B, H, n, D], without ranking them."""
        batch, heads, _ = self.kept.shape
        new = positions(self.length, self.length + keys.shape[2], batch, heads, keys.device)
        self.kept = torch.cat([self.kept, new], dim=-1)
        if self.scores is not None:
            self.scores = pad(self.scores, (0, keys.shape[2]), value=torch.nan)
        if self.votes is not None:
            self.votes = pad(self.votes, (0, keys.shape[2]), value=UNRANKED)
        super().append(keys, values)

    def keep(self, places: Tensor, scores: Tensor | None) -> None:
        """Keep only the tokens at these places [B, R, K'] of `kept`, -1 for pads; `scores` [B, R, K'] are theirs."""
        self.kept = at_places(self.kept, places, -1)
        self.scores = scores
        if self.votes is not None:
            self.votes = at_places(self.votes, places, UNRANKED)

    @property
    def visible(self) -> Tensor | None:
        """Whether each of `kept` is a token, bool [B, R, K]; None if there are no pads."""
        tokens = self.kept >= 0
        return None if bool(tokens.all()) else tokens

    def read_bytes(self) -> int:
        """0: a step attends to all kept tokens and does not choose."""
        return 0


@dataclass
class Eviction(Method[E]):
    """An eviction method: at the end of a prompt it ranks the tokens and drops all but the best for good.

    A subclass implements `rank`, and `window` if the number of last tokens that always stay is not `recent`. Sinks
    always stay too. With generated="on_top" all tokens generated later are attended to. With "within", each of them
    takes the place of the kept token with the lowest rank outside sinks and window; a generated token that leaves the
    window has the lowest rank of all, since no query of the prompt ranked it. At a later prompt of the session, its
    queries rank the kept tokens together with its own, and the budget holds for all of them.
    """

    kind = "eviction"
    stages: ClassVar[tuple[str, ...]] = ("kept",)
    expected_failures: ClassVar[Mapping[str, str]] = {
        "extension_equals_one_build": "tokens dropped at the end of the prompt cannot come back"
    }
    state_class: ClassVar[type[EvictionState]] = EvictionState
    keeps_votes: ClassVar[bool] = True  # False if `standing` ranks the kept tokens by something else
    heads_may_differ: ClassVar[bool] = False  # True if pads in `kept` get no weight, so that heads may keep fewer

    @property
    def always_recent(self) -> int:
        """`recent`, but at least one token if each new token takes the place of another: the step's own must fit."""
        return max(super().always_recent, int(self.generated == "within"))

    def rank(self, state: E, queries: Tensor, keys: Tensor) -> Tensor:
        """Scores [B, R, N], or [B, H, N], of the tokens kept so far, from a prompt's queries [B, Q, n, D].

        keys [B, H or R, N, D] are the keys of these tokens; the last n belong to the prompt.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rank")

    def window(self, state: E) -> int:
        """The number of last prompt tokens that stay without being ranked."""
        return self.always_recent

    def recent_window(self, state: E) -> int:
        """The window; with generated="on_top" that of the prompt and all tokens generated since."""
        return self.window(state) + (state.generated if self.generated == "on_top" else 0)

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> E:
        """The state with the prompt's best tokens; O(n·L·D) for the n queries that rank them, all L for H2O."""
        state = self.whole(layer, keys, values)
        self._keep_ranked(state, self.rank(state, queries, keys))
        return state

    def extend(self, state: E, queries: Tensor, keys: Tensor, values: Tensor) -> E:
        """The state with the new tokens; with generated="within" each takes the place of the lowest-ranked token."""
        for token in range(keys.shape[2]):
            now = slice(token, token + 1)
            if self.generated == "within":
                self.keep_best(state, self.standing(state), self.step_budget(state) - 1, self.window(state) - 1)
            state.append(keys[:, :, now], values[:, :, now])
            self.observe(state, queries[:, :, now])
        return state

    def standing(self, state: E) -> Tensor:
        """Scores [B, R, K] that rank the kept tokens while decoding: the votes of the prompt."""
        assert state.votes is not None
        return state.votes

    def observe(self, state: E, queries: Tensor) -> None:
        """Take in the queries [B, Q, 1, D] of the newest token, already kept; by default nothing."""

    def continue_prompt(self, state: E, queries: Tensor, keys: Tensor, values: Tensor) -> E:
        """The state with the best of what was kept and of the later prompt's tokens."""
        state.append_prompt(keys, values)
        self._keep_ranked(state, self.rank(state, queries, state.tokens.take_keys(state.kept)))
        return state

    def select(self, state: E, queries: Tensor) -> Selection:
        """A selection of all kept tokens."""
        if state.scores is None:
            return Selection(state.kept)
        return Selection(state.kept, torch.full_like(state.kept, -1, dtype=torch.int32), state.scores)

    def keeps(self, state: E) -> Tensor:
        """The kept positions per KV head: for group="each" the union over its query heads."""
        heads = state.layer.n_kv_heads
        return state.kept if state.kept.shape[1] == heads else union(state.kept, heads)

    def whole(self, layer: LayerContext, keys: Tensor, values: Tensor, kept: Tensor | None = None) -> E:
        """The state of a prompt with all tokens, or with those at the positions `kept` [B, R, K]."""
        batch, _, length, _ = keys.shape
        if kept is None:
            kept = positions(0, length, batch, layer.selection_heads(self.group), keys.device)
        scores = torch.full_like(kept, torch.nan, dtype=torch.float32) if layer.details else None
        tokens = layer.token_cache(keys, values)
        return self.state_class(layer, length, length, tokens, kept, scores)  # type: ignore[return-value]  # it is E

    def _keep_ranked(self, state: E, scores: Tensor) -> None:
        """Keep the best tokens of a prompt within the budget, by their scores [B, R or H, N]."""
        if self.generated == "within" and self.keeps_votes:
            state.votes = to_selection_heads(scores, state.kept.shape[1])
        self.keep_best(state, scores, self.step_budget(state), self.window(state))

    def keep_best(self, state: E, scores: Tensor, count: int, window: int) -> None:
        """Keep only `count` of the kept tokens: the sinks, the last `window` tokens, and the best between them.

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


def at_places(tensor: Tensor, places: Tensor, fill: float) -> Tensor:
    """The elements of a tensor [B, R, K] at `places` [B, R, K'], `fill` for pads of -1."""
    return tensor.gather(-1, places.clamp(min=0)).masked_fill(places < 0, fill)


def union(kept: Tensor, heads: int) -> Tensor:
    """The union of positions over each KV head's query heads: [B, Q, K] -> [B, H, K'], ascending, padded with -1.

    -1 in a row of positions is padding.
    """
    ordered = kept.unflatten(1, (heads, -1)).flatten(2).sort(-1).values  # [B, H, G * K]
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    first &= ordered >= 0
    beyond = torch.iinfo(ordered.dtype).max  # sorts after every position
    width = int(first.sum(-1).max())
    distinct: Tensor = ordered.masked_fill(~first, beyond).sort(-1).values[..., :width]
    return distinct.masked_fill(distinct == beyond, -1)
