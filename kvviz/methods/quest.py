"""Quest: pages of consecutive tokens, ranked by an upper bound of their attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ..clustering.pages import Pages, join_pages, page_bounds
from ..selection import Selection, reduce_group, surround
from .base import LayerContext, Method, State

LEAST_PAGES = 3


@dataclass
class QuestState(State):
    """Beside the counts, the bounds of every full page and the keys [B, H, n, D] behind the last one."""

    pages: Pages
    tail: list[Tensor]


@dataclass
class Quest(Method):
    """Recalls whole pages by the channel-wise bound Σ max(q·k_max, q·k_min).

    Source: Quest (arXiv 2406.10774), section 3.3: page 16, at least 3 pages, the first two layers dense. Deviation:
    pages that reach into the recent window (at least the newest token's own) and pages with sinks are always attended;
    generated tokens raise the number of pages recalled, since the budget does not count them, and their pages are
    ranked like the prompt's.
    """

    name = "quest"
    title = "Quest"
    paper = "arXiv 2406.10774"
    kind = "retrieval"
    needs_queries = False

    dense_layers: int = 2
    page_size: int = 16

    def __post_init__(self) -> None:
        self._check_at_least("page_size", 1)
        super().__post_init__()

    @property
    def reserved(self) -> int:
        """Sinks in whole pages, the recent window, and the least number of pages."""
        return -(-self.sinks // self.page_size) * self.page_size + self.recent + LEAST_PAGES * self.page_size

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> QuestState:
        """Bounds of every full page; O(L·D)."""
        whole = keys.shape[2] - keys.shape[2] % self.page_size
        pages = _bounds(keys[:, :, :whole], self.page_size)
        tail = keys[:, :, whole:].clone()  # a view would keep an outgrown buffer
        return QuestState(layer, keys.shape[2], keys.shape[2], pages, [tail])

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> QuestState:
        """Adds the new tokens; a page gets its bounds once it is full."""
        state = cast(QuestState, state)
        state.tail.append(keys)
        state.length += keys.shape[2]
        full = (state.length - state.pages.length) // self.page_size * self.page_size
        if full:
            tail = torch.cat(state.tail, dim=2)
            state.pages = join_pages(state.pages, _bounds(tail[:, :, :full], self.page_size))
            state.tail = [tail[:, :, full:]]
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """Tokens of the best pages, and of the last page while it is not full."""
        everything = self.everything(state, queries)
        if everything is not None:
            return everything
        layer, state = state.layer, cast(QuestState, state)
        tail = (state.length - max(self.recent, 1)) // self.page_size  # the first page that is attended anyway
        scores = self._scores(state.pages, queries)[..., :tail]  # [B, R, P]
        scores[..., : -(-self.sinks // self.page_size)] = torch.inf
        count = self.allowance(state) // self.page_size - math.ceil(
            (state.length - tail * self.page_size) / self.page_size
        )
        pages = scores.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(-1).values  # [B, R, P']
        offsets = torch.arange(self.page_size, device=pages.device)
        indices = (pages[..., None] * self.page_size + offsets).flatten(-2)  # [B, R, S]
        chosen = Selection(indices)
        if layer.details:
            of_token = pages.repeat_interleave(self.page_size, dim=-1)
            chosen = Selection(indices, of_token.to(torch.int32), scores.gather(-1, of_token).float())
        return surround(chosen, after=(tail * self.page_size, state.length))

    def _scores(self, pages: Pages, queries: Tensor) -> Tensor:
        n_kv_heads = pages.low.shape[1]
        heads = queries.unflatten(1, (n_kv_heads, -1))  # [B, H, G, D]
        # The bound splits by the sign of q: positive channels meet the page's maximum, negative ones its minimum.
        bound = heads.clamp(min=0) @ pages.high.transpose(-1, -2) + heads.clamp(max=0) @ pages.low.transpose(-1, -2)
        return reduce_group(bound.flatten(1, 2), n_kv_heads, self.group)


def _bounds(keys: Tensor, page_size: int) -> Pages:
    """The pages of keys without their means, which Quest never reads."""
    pages = page_bounds(keys, page_size)
    return replace(pages, mean=pages.mean[..., :0, :].clone())
