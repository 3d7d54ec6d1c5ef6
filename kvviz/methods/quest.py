"""Quest: pages of consecutive tokens, ranked by an upper bound of their attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..clustering.pages import Pages, join_pages, page_bounds
from ..errors import InvalidInputError
from ..selection import Selection, reduce_group, surround
from .base import LayerContext, Method, State, check_finite

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
    the last page, while it is not full, is always attended, and generated tokens raise the number of pages recalled,
    since the budget does not count them. Generated pages are ranked like the prompt's.
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

    def _check_reserved(self, tokens: int, origin: str = "") -> None:
        super()._check_reserved(tokens, origin)
        if tokens < LEAST_PAGES * self.page_size:
            raise InvalidInputError(f"{self.name}: budget", f"{tokens} tokens{origin}",
                                    f"at least {LEAST_PAGES * self.page_size}: {LEAST_PAGES} pages of {self.page_size}")  # fmt: skip

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> QuestState:
        """Bounds of every full page; O(L·D)."""
        check_finite(f"{self.name}: build of layer {layer.index}", keys)
        whole = keys.shape[2] - keys.shape[2] % self.page_size
        pages = page_bounds(keys[:, :, :whole], self.page_size)
        return QuestState(layer, keys.shape[2], keys.shape[2], pages, [keys[:, :, whole:]])

    def extend(self, state: State, queries: Tensor, keys: Tensor, values: Tensor) -> QuestState:
        """Adds the new tokens; a page gets its bounds once it is full."""
        state = cast(QuestState, state)
        state.tail.append(keys)
        state.length += keys.shape[2]
        full = (state.length - state.pages.length) // self.page_size * self.page_size
        if full:
            tail = torch.cat(state.tail, dim=2)
            state.pages = join_pages(state.pages, page_bounds(tail[:, :, :full], self.page_size))
            state.tail = [tail[:, :, full:]]
        return state

    def select(self, state: State, queries: Tensor) -> Selection:
        """Tokens of the best pages, and of the last page while it is not full."""
        everything = self.everything(state, queries)
        if everything is not None:
            return everything
        layer, state = state.layer, cast(QuestState, state)
        scores = self._scores(state.pages, queries)  # [B, R, P]
        count = (self.allowance(state) - state.length % self.page_size) // self.page_size
        pages = scores.argsort(dim=-1, descending=True, stable=True)[..., :count].sort(-1).values  # [B, R, P']
        offsets = torch.arange(self.page_size, device=pages.device)
        indices = (pages[..., None] * self.page_size + offsets).flatten(-2)  # [B, R, S]
        chosen = Selection(indices)
        if layer.details:
            of_token = pages.repeat_interleave(self.page_size, dim=-1)
            chosen = Selection(indices, of_token.to(torch.int32), scores.gather(-1, of_token).float())
        return surround(chosen, after=(state.pages.length, state.length))

    def _scores(self, pages: Pages, queries: Tensor) -> Tensor:
        n_kv_heads = pages.low.shape[1]
        heads = queries.unflatten(1, (n_kv_heads, -1))  # [B, H, G, D]
        # The bound splits by the sign of q: positive channels meet the page's maximum, negative ones its minimum.
        bound = heads.clamp(min=0) @ pages.high.transpose(-1, -2) + heads.clamp(max=0) @ pages.low.transpose(-1, -2)
        return reduce_group(bound.flatten(1, 2), n_kv_heads, self.group)
