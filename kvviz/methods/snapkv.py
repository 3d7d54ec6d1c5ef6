"""SnapKV: the last queries of the prompt vote for the tokens to keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d, pad

from ..trace.styles import Style
from .attention import attention_received
from .base import Generated
from .eviction import Eviction, EvictionState
from .fields import checked, one_of, whole
from .selection import reduce_group


@dataclass
class SnapKV(Eviction[EvictionState]):
    """Keeps the observation window, the last `recent` prompt tokens, and the tokens to which its queries attend most.

    Each token's attention weights from the window are summed, reduced over the group, and pooled over `kernel`
    neighbours, so that contiguous tokens are kept; missing neighbours count as 0. Source: SnapKV (arXiv 2404.14469),
    section 4. The defaults (window 64, average over 5) are those of the published class.

    Deviations: scores are reduced over the group before pooling, which matters only for group="max" or pooling="max".
    The paper has no later prompts: here only their own queries vote, and pooling is over neighbours among the kept
    tokens. As the paper drops no token while decoding, generated tokens come on top of the budget; with
    generated="within" the window moves on, and each of them takes the place of the token with the fewest votes.
    preset="official" has the settings of the published LongBench runs: window 32, maximum over 7, and a separate choice
    per query head, because the code repeats the KV heads before it chooses.
    """

    name = "snapkv"
    title = "SnapKV"
    paper = "arXiv 2404.14469"
    score_name = "pooled attention of the last queries"
    heads_may_differ = True
    style = Style(dash="dash", symbol="square-open")
    expected_failures = {
        **Eviction.expected_failures,
        "the_budget_holds": "the paper evicts at the end of the prompt only; generated tokens come on top (section 4)",
    }
    presets = {
        "paper": {},
        "official": {"recent": 32, "kernel": 7, "pooling": "max", "group": "each"},
    }

    generated: Generated = "on_top"
    recent: int = whole(64, 1)  # without a window there are no votes
    kernel: int = checked(5, int, lambda kernel: kernel >= 1 and kernel % 2 == 1, "an odd int >= 1")
    pooling: Literal["avg", "max"] = one_of("avg", ("avg", "max"))

    def rank(self, state: EvictionState, queries: Tensor, keys: Tensor) -> Tensor:
        """Pooled votes of the window's queries; 0 for the window's tokens, which always stay."""
        layer, ranked = state.layer, keys.shape[2] - self.recent
        if ranked <= 0:
            return torch.zeros(state.kept.shape, device=keys.device)
        window = queries[:, :, -self.recent :]
        received = attention_received(window, keys, layer.scale, layer.softcap, visible=state.visible)
        votes = reduce_group(received[..., :ranked], layer.n_kv_heads, self.group)
        pool = avg_pool1d if self.pooling == "avg" else max_pool1d
        return pad(pool(votes, self.kernel, stride=1, padding=self.kernel // 2), (0, self.recent))
