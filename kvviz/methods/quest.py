"""Quest: pages of consecutive tokens, ranked by an upper bound of their attention logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from kvviz_kernels.selection import page_scores, take_best
from torch import Tensor

from ..clustering.pages import full_page_bounds
from ..offload.growing import GrowingTensor
from ..trace.styles import Style
from .base import LayerContext, Method, State
from .fields import whole
from .ranking import Ranking, spread
from .selection import Selection, add_sinks_and_recent, group_scores, positions
from .sliders import Slider

LEAST_PAGES = 3


@dataclass
class QuestState(State):
    """A state with the bounds of all full pages, and the keys [B, H, n, D] after the last full page.

    `bounds` [B, H, 2·D, P] hold each page's channel-wise maxima, followed by its minima.
    """

    bounds: GrowingTensor
    tail: list[Tensor]


@dataclass
class Quest(Method[QuestState]):
    """Recalls whole pages by the channel-wise upper bound of their logits, Σ max(q·k_max, q·k_min).

    Source: Quest (arXiv 2406.10774), section 3.3: pages of 16 tokens, at least 3 pages, the first two layers dense.
    Deviation: pages that overlap the recent window (at least the newest token's page) and pages with sinks are always
    attended to. Pages of generated tokens are ranked like those of the prompt, within the same budget.
    """

    name = "quest"
    title = "Quest"
    paper = "arXiv 2406.10774"
    score_name = "upper bound of q·k"
    kind = "retrieval"
    group_name = "page"
    style = Style("#E69F00", "dash", "triangle-down")
    sliders = (Slider("page_size", "page size", (4, 8, 16, 32, 64, 128), "consecutive tokens per page"),)
    needs_queries = False
    builds_for_any_budget = True
    stages = ("kept", "grouping", "ranking", "trimming")

    dense_layers: int = 2
    page_size: int = whole(16, 1)

    @property
    def reserved(self) -> int:
        """Sinks in whole pages, the recent window, and the minimum number of pages."""
        return -(-self.sinks // self.page_size) * self.page_size + self.recent + LEAST_PAGES * self.page_size

    def recent_window(self, state: State) -> int:
        """The tokens of all pages that overlap the last `recent` tokens, at least the page of the newest token."""
        return state.length - self._tail(state) * self.page_size

    def build(self, layer: LayerContext, queries: Tensor, keys: Tensor, values: Tensor) -> QuestState:
        """The state with the bounds of all full pages; O(L·D)."""
        end = keys.shape[2] - keys.shape[2] % self.page_size
        bounds = GrowingTensor(_bounds(keys[:, :, :end], self.page_size), 3)
        tail = keys[:, :, end:].clone()  # a view would keep the old buffer alive
        return QuestState(layer, keys.shape[2], keys.shape[2], bounds, [tail])

    def extend(self, state: QuestState, queries: Tensor, keys: Tensor, values: Tensor) -> QuestState:
        """The state with the new tokens added; a page gets its bounds once it is full."""
        state.append(keys, values)
        state.tail.append(keys)
        full = state.length // self.page_size - state.bounds.used
        if full:
            tail = torch.cat(state.tail, dim=2)
            state.bounds.append(_bounds(tail[:, :, : full * self.page_size], self.page_size))
            state.tail = [tail[:, :, full * self.page_size :].clone()]
        return state

    def choose(self, state: QuestState, queries: Tensor) -> Selection:
        """The tokens of the best pages and of the recent window."""
        tail = self._tail(state)
        scores = page_scores(queries, state.bounds.tensor[..., :tail], group=self.group)  # [B, R, P]
        if self.sinks:
            scores[..., : -(-self.sinks // self.page_size)] = torch.inf
        after = -(-(state.length - tail * self.page_size) // self.page_size)  # pages of the recent window
        pages = take_best(scores, self.step_budget(state) // self.page_size - after)  # [B, R, P']
        offsets = positions(0, self.page_size, 1, 1, pages.device)
        indices = torch.add(offsets, pages[..., None], alpha=self.page_size).flatten(-2)  # [B, R, S]
        chosen = Selection(indices)
        if state.layer.details:
            token_pages = pages.repeat_interleave(self.page_size, dim=-1)
            chosen = Selection(indices, token_pages.to(torch.int32), scores.gather(-1, token_pages))
        return add_sinks_and_recent(chosen, recent=(tail * self.page_size, state.length))

    def ranking(self, state: QuestState, queries: Tensor, keys: Tensor) -> Ranking:
        """The bound of each token's page, by the stored and by new bounds, and the score of the token's own key."""
        tail = self._tail(state)
        end, rows = tail * self.page_size, state.layer.selection_heads(self.group)
        page = torch.arange(state.length, device=keys.device) // self.page_size
        page[: -(-self.sinks // self.page_size) * self.page_size] = -1  # pages with sinks are not ranked
        page[end:] = -1
        groups = page.expand(keys.shape[0], rows, -1)
        stored, new = state.bounds.tensor[..., :tail], _bounds(keys[:, :, :end], self.page_size)
        scores, exact = (page_scores(queries, bounds, group=self.group) for bounds in (stored, new))
        alone = group_scores(queries, keys.float(), self.group)
        return Ranking(spread(scores, groups), spread(exact, groups), alone, groups)

    def group_tokens(self, state: QuestState, head: int, number: int) -> Tensor:
        """The tokens of a page."""
        start = number * self.page_size
        return torch.arange(start, max(min(start + self.page_size, state.length), start))

    def _tail(self, state: State) -> int:
        """The first page of the recent window, which is attended to without ranking."""
        return (state.length - max(self.recent, 1)) // self.page_size


def _bounds(keys: Tensor, page_size: int) -> Tensor:
    """Channel-wise maxima and minima [B, H, 2·D, P] of the pages of keys [B, H, P · page_size, D]."""
    minima, maxima = full_page_bounds(keys, page_size)
    return torch.cat([maxima, minima], dim=-1).transpose(-1, -2).contiguous()
