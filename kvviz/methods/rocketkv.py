"""RocketKV: coarse eviction at the end of the prompt, and at each step the best of the kept tokens by a sketch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from kvviz_kernels.softcap import softcap_
from torch import Tensor
from torch.nn.functional import pad

from ..clustering.pages import full_page_bounds
from ..offload.channels import ChannelCache
from .attention import attention_weights
from .eviction import Eviction, EvictionState
from .fields import checked, number, whole
from .ranking import Ranking
from .selection import Selection, reduce_group, take_tokens, to_selection_heads
from .snapkv import SnapKV
from .state import tensor_bytes

TINY = 1e-30  # avoids 0 / 0 in the coverage of an all-zero query


@dataclass
class RocketKVState(EvictionState):
    """A state with the sketch of the kept tokens: the bounds of pages of them, channel by channel.

    A page is `page_size` consecutive kept tokens. `bounds` [B, R, 2·D, P] are each full page's channel-wise maxima,
    then its minima; for pages of one token just the keys, [B, R, D, P]. `tail` [B, R, n, D] are the keys after the
    last full page. A step reads `channels_read` channels.
    """

    bounds: ChannelCache = field(init=False)
    tail: Tensor = field(init=False)
    page_size: int = 1
    channels_read: int = 1

    def sketch(self, page_size: int, channels_read: int) -> None:
        """Make the sketch of all tokens kept so far."""
        keys = self.tokens.take_keys(self.kept)
        self.page_size, self.channels_read = page_size, channels_read
        self.tail = keys[:, :, :0]
        self.bounds = ChannelCache.of(self.bounds_of(self.tail))
        self.add(keys)

    def add(self, keys: Tensor) -> None:
        """Add the keys [B, R, n, D] of newly kept tokens to the sketch."""
        keys = torch.cat([self.tail, keys], dim=2)
        full = keys.shape[2] - keys.shape[2] % self.page_size
        if full:
            self.bounds.append(self.bounds_of(keys[:, :, :full]))
        self.tail = keys[:, :, full:].clone()  # a view would keep the whole buffer alive

    def bounds_of(self, keys: Tensor) -> Tensor:
        """The bounds [B, R, P, 2·D] of keys [B, R, P · page_size, D], or the keys themselves for pages of one token."""
        if self.page_size == 1:
            return keys
        minima, maxima = full_page_bounds(keys, self.page_size)
        return torch.cat([maxima, minima], dim=-1)

    def products(self, queries: Tensor, channels: Tensor, positive: Tensor) -> Tensor:
        """Bounds of the inner products of queries [B, R, G, r] with each kept token's page over some channels.

        channels [B, R, r]; `positive` [B, R, r] says where the maximum bounds the product, not the minimum. Returns
        float32 [B, R, G, K].
        """
        if self.page_size == 1:
            return queries @ self.bounds.pick(channels).float()
        rows = channels + self.layer.head_dim * ~positive
        by_page = self.bounds.pick(rows).float()  # [B, R, r, P]
        if self.tail.shape[2]:
            tail = torch.cat([self.tail.amax(2), self.tail.amin(2)], dim=-1).gather(-1, rows)
            by_page = torch.cat([by_page, tail[..., None].float()], dim=-1)
        return (queries @ by_page).repeat_interleave(self.page_size, dim=-1)[..., : self.kept.shape[-1]]

    def read_bytes(self) -> int:
        """Bytes of the channels that one step reads of the sketch, and of the tail."""
        return tensor_bytes(self.bounds) * self.channels_read // self.bounds.buffer.shape[2] + tensor_bytes(self.tail)


@dataclass
class RocketKV(Eviction[RocketKVState]):
    """Evicts coarsely at the end of the prompt, and attends at each step to the best of the tokens that stay.

    With a budget of B for L tokens, the compression c = L / B is split between two stages: the first keeps L / c^s
    tokens, the second attends to B of them. The exponent s is `split`, by default 0.2 + 0.06·log2 c, at most 0.8. Stage
    1 is SnapKV with the last `observed` queries and the maximum over `kernel` neighbours. Stage 2 reads a sketch of the
    kept keys that is smaller by the compression c' = c^(1 − s) that is left, about √c' along tokens and √c' along
    channels: it has the channel-wise bounds of pages of ⌈√c'⌉ kept tokens, as in Quest, and a step reads only the
    channels in which a group's queries are largest, as in SparQ. The sign of the group's summed query chooses between
    maximum and minimum. The logits are scaled by the share of |q| in these channels, and the approximate weights are
    reduced over the group. Source: RocketKV (arXiv 2502.14051), section 3; window, kernel, split and rounding are those
    of the published code.

    This is an eviction method, because dropped tokens never come back, that also retrieves: `keeps` are the tokens of
    stage 1, more than a step attends to. Generated tokens are all kept; they count within the budget, as stage 2 ranks
    them like those of the prompt. Only the newest is always attended to. Pages and channels are fixed after a prompt; a
    later prompt of the session is compressed together with what was kept. Deviations: the paper's budget counts what a
    step reads, half of it for the sketch, half for the attended tokens; here it counts attended tokens. The code takes
    the tokens still to be generated from what stage 1 keeps. Logits use the model's scale and soft-cap. The paper's
    variant for several turns, which drops nothing, is not here.

    preset="official": `sketch_share` 0.5, so that a step attends to half of the budget, as in the published runs.
    """

    name = "rocketkv"
    title = "RocketKV"
    paper = "arXiv 2502.14051"
    score_name = "approximate attention weight"
    group_name = "page"
    stages = ("kept", "grouping", "ranking", "trimming")
    presets = {"paper": {}, "official": {"sketch_share": 0.5}}
    expected_failures: ClassVar[Mapping[str, str]] = {
        **Eviction.expected_failures,
        "the_budget_holds": "stage 1 keeps more tokens than a step attends to, and all generated ones (section 3)",
    }
    state_class = RocketKVState
    keeps_votes = False

    observed: int = whole(32, 1)
    kernel: int = checked(63, int, lambda kernel: kernel >= 1 and kernel % 2 == 1, "an odd int >= 1")
    split: float | None = number(None, 0, 1)
    sketch_share: float = number(0.0, 0, 0.9)

    def window(self, state: RocketKVState) -> int:
        """The last prompt tokens that stage 1 keeps without ranking them."""
        return max(self.observed, self.always_recent)

    def recent_window(self, state: RocketKVState) -> int:
        """The last tokens that a step attends to without ranking them; with generated="on_top" all generated ones."""
        return self.always_recent + (state.generated if self.generated == "on_top" else 0)

    def capacity(self, length: int) -> int:
        """The number of tokens that stage 1 keeps of a prompt."""
        ratio = max(length / self.budget_tokens(length), 1.0)
        split = min(0.2 + 0.06 * math.log2(ratio), 0.8) if self.split is None else self.split
        kept = math.floor(length / math.pow(ratio, split))
        return max(kept, self.sinks + max(self.observed, self.always_recent))

    def rank(self, state: RocketKVState, queries: Tensor, keys: Tensor) -> Tensor:
        """Pooled votes of the last queries, as in SnapKV."""
        voting = SnapKV(budget=self.observed, recent=self.observed, kernel=self.kernel, pooling="max", group=self.group)
        return voting.rank(state, queries, keys)

    def extend(self, state: RocketKVState, queries: Tensor, keys: Tensor, values: Tensor) -> RocketKVState:
        """The state with the new tokens kept and added to the sketch."""
        state.append(keys, values)
        state.add(to_selection_heads(keys, state.kept.shape[1]))
        return state

    def select(self, state: RocketKVState, queries: Tensor) -> Selection:
        """The kept tokens if the budget holds them all, or else the best of them."""
        return super().select(state, queries) if self._all_fit(state) else self.choose(state, queries)

    def choose(self, state: RocketKVState, queries: Tensor) -> Selection:
        """Sinks, the kept tokens with the largest approximate weights, and the recent window."""
        scores = self._scores(state, queries)
        end = scores.shape[-1] - self.recent_window(state)
        for_sketch = math.floor(self.sketch_share * self.budget_tokens(state.prompt_length))
        free = max(self.free_budget(state) - for_sketch, 0)
        best = take_tokens(scores[..., self.sinks : end], free, start=self.sinks, details=state.layer.details)
        pages = (best.indices // state.page_size).to(torch.int32) if state.layer.details else None
        chosen = Selection(state.kept.gather(-1, best.indices), pages, best.scores)
        return self.with_sinks_and_recent(state, chosen)

    def ranking(self, state: RocketKVState, queries: Tensor, keys: Tensor) -> Ranking:
        """The approximate weight of each kept token's page, and the largest exact weight in the page."""
        layer, kept, size = state.layer, state.kept, state.page_size
        count = kept.shape[-1]
        exact = reduce_group(attention_weights(queries, keys, layer.scale, layer.softcap), layer.n_kv_heads, self.group)
        of_kept = exact.gather(-1, kept)
        largest = pad(of_kept, (0, -count % size), value=-torch.inf).unflatten(-1, (-1, size)).amax(-1)
        pages = (torch.arange(count, device=kept.device) // size).expand_as(kept).clone()
        scores = self._scores(state, queries)
        for outside in (slice(0, self.sinks), slice(count - self.recent_window(state), count)):
            scores[..., outside], pages[..., outside] = torch.nan, -1
        unranked = torch.full_like(exact, torch.nan)
        return Ranking(
            unranked.scatter(-1, kept, scores),
            unranked.scatter(-1, kept, largest.repeat_interleave(size, dim=-1)[..., :count]),
            exact,
            torch.full_like(exact, -1, dtype=torch.int64).scatter(-1, kept, pages),
        )

    def group_tokens(self, state: RocketKVState, head: int, number: int) -> Tensor | None:
        """The tokens of a page; None if each query head has pages of its own."""
        if self.group == "each":
            return None
        return state.kept[0, head, max(number, 0) * state.page_size : (number + 1) * state.page_size]

    def _keep_ranked(self, state: RocketKVState, scores: Tensor) -> None:
        """Keep the best tokens of a prompt, and make their sketch."""
        budget = self.budget_tokens(state.prompt_length)
        self.keep_best(state, scores, self.capacity(state.prompt_length), self.window(state))
        ratio = max(state.kept.shape[-1] / budget, 1.0)
        page_size = min(math.floor(ratio), math.ceil(math.sqrt(ratio)))
        width = state.layer.head_dim
        state.sketch(page_size, min(max(round(width * page_size / ratio), 1), width))

    def _all_fit(self, state: RocketKVState) -> bool:
        return state.kept.shape[-1] <= self.step_budget(state)

    def _scores(self, state: RocketKVState, queries: Tensor) -> Tensor:
        """Approximate weights [B, R, K] of all kept tokens, reduced over the group."""
        layer = state.layer
        by_head = queries.float().unflatten(1, (state.kept.shape[1], -1))  # [B, R, G, D]
        size = by_head.abs()
        channels = size.sum(2).argsort(dim=-1, descending=True, stable=True)[..., : state.channels_read]  # [B, R, r]
        of_group = channels[:, :, None].expand(-1, -1, by_head.shape[2], -1)
        coverage = (size.gather(-1, of_group).sum(-1) + TINY) / (size.sum(-1) + TINY)  # [B, R, G]
        picked = by_head.gather(-1, of_group) * (layer.scale * coverage.rsqrt())[..., None]
        logits = state.products(picked, channels, by_head.sum(2).gather(-1, channels) > 0)
        weights = softcap_(logits, layer.softcap).softmax(-1).flatten(1, 2)  # [B, Q, K]
        return reduce_group(weights, layer.n_kv_heads, self.group)
