"""AdaKV: one budget for all heads of a layer, shared out by their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .base import Method
from .eviction import Eviction, EvictionState
from .fields import number
from .selection import Selection, packed_places, positions
from .wrapper import Wrapper


@dataclass
class AdaKV(Wrapper):
    """Head budgets over an eviction method: a head whose scores are spread keeps more tokens than one that needs few.

    The heads of a layer together keep as many tokens as under the wrapped method: `budget` is their mean. Of the tokens
    between sinks and window, each head keeps the best `floor` share of its equal part; the rest goes to the best tokens
    of all heads. Scores of different heads are compared as they are, which needs scores of one scale, such as attention
    weights. Source: AdaKV (arXiv 2407.11550), section 3 and algorithm 1, with its safeguard α = 0.2 as `floor`.

    Published code counts how many of the layer's best tokens each head has, and scales the counts to what the floors
    leave, so that rounding may keep a few tokens more or fewer. Here the sum is exact. With a method that evicts while
    decoding, each step shares out the budget again.

    A layer's store has as many slots per head as its fullest head keeps: the published code packs the heads' tokens one
    after another instead. A kept byte is therefore saved only if all heads save it.
    """

    name = "adakv"
    title = "AdaKV"
    paper = "arXiv 2407.11550"
    wraps = "snapkv"
    expected_failures: ClassVar[Mapping[str, str]] = {
        "extension_equals_one_build": "tokens that a head dropped at an earlier step cannot come back to it"
    }

    floor: float = number(0.2, 0, 1)

    @classmethod
    def check_wrapped(cls, method: type[Method]) -> None:
        """Raise InvalidInputError unless the method evicts, and ignores the pads of heads that keep fewer tokens."""
        if not (issubclass(method, Eviction) and method.heads_may_differ):
            wanted = "an eviction method whose heads may keep different numbers of tokens"
            raise InvalidInputError(f"{cls.name} over {method.name}", f"kind {method.kind}", wanted)

    def extra_tokens(self, prompt_length: int) -> int:
        """The whole prompt: one head may take the parts of all others."""
        return prompt_length

    def select(self, state: Any, queries: Tensor) -> Selection:
        """A selection of all kept tokens, with pads."""
        return replace(super().select(state, queries), padded=True)

    def keep_best(self, state: EvictionState, scores: Tensor, count: int, window: int) -> None:
        """Keep `count` tokens per head on average: sinks, the last `window` tokens, and the best of all heads.

        scores [B, R or H, N] rank the tokens kept so far.
        """
        batch, heads, total = state.kept.shape
        between = slice(self.sinks, total - window)
        free = max(count - self.sinks - window, 0)
        tokens = state.kept[..., between] >= 0
        if total <= count or int(tokens.sum((1, 2)).max()) <= heads * free:
            return
        ranked = scores.repeat_interleave(heads // scores.shape[1], dim=1)[..., between].float()
        staying = best_of_layer(ranked, tokens, heads * free, int(self.floor * free))
        places, padded = packed_places(staying)
        taken = ranked.gather(-1, places).masked_fill(padded, torch.nan)
        first = positions(0, self.sinks, batch, heads, places.device)
        last = positions(total - window, total, batch, heads, places.device)
        unranked = [torch.full(part.shape, torch.nan, device=part.device) for part in (first, last)]
        told = torch.cat([unranked[0], taken, unranked[1]], dim=-1) if state.layer.details else None
        state.keep(torch.cat([first, (places + self.sinks).masked_fill(padded, -1), last], dim=-1), told)


def best_of_layer(scores: Tensor, tokens: Tensor, count: int, floor: int) -> Tensor:
    """Which tokens stay, bool [B, R, N]: the best `floor` of each head, then the best of all, `count` in each sequence.

    `tokens` bool [B, R, N] is False for pads, which never stay. Ties go to the lower head, then to the earlier token.
    """
    ranked = scores.clamp(min=torch.finfo(scores.dtype).min).masked_fill(~tokens, -torch.inf)
    best_first = ranked.argsort(dim=-1, descending=True, stable=True)
    of_floor = torch.zeros_like(tokens).scatter_(-1, best_first[..., :floor], True) & tokens
    of_layer = ranked.masked_fill(of_floor, torch.inf).flatten(1).argsort(dim=-1, descending=True, stable=True)
    staying = torch.zeros_like(tokens).flatten(1).scatter_(-1, of_layer[:, :count], True)
    return staying.view_as(tokens) & tokens
