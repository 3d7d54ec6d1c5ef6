"""The pages of Quest at one step: their boxes, bounds and scores, by the functions and the state of the method."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, SupportsFloat

import numpy as np
from kvviz_kernels.selection import page_scores
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InvalidInputError
from ...trace.scene import refer
from ..quest import Quest
from .moment import Moment

MOST_CHIPS = 16  # tokens of a page that are shown in a row
PAGE_SIZES = (4, 8, 16, 32, 64)
Floats = NDArray[np.float32]


class Pages:
    """The pages of one step, and in detail the page `shown`: that of the followed token, or else the best one."""

    def __init__(self, method: Quest, moment: Moment) -> None:
        self.method, self.moment, self.state = method, moment, moment.state
        self.first = -(-method.sinks // method.page_size)  # pages before it have sinks
        self.end = method.recent_start(self.state) // method.page_size  # pages from here on overlap the recent window
        self.full, self.head_dim = self.state.bounds.used, moment.keys.shape[-1]
        own = moment.token // method.page_size
        self.shown: int = own if self.first <= own < self.end else int(self.ranked[0])

    @cached_property
    def scores(self) -> Floats:
        """The score of each page before the recent window: its bound, reduced over the query heads."""
        return _row(page_scores(self.moment.queries, self.bounds[..., : self.end], group=self.method.group))

    @cached_property
    def ranked(self) -> NDArray[np.int64]:
        """The pages that are ranked, the best first."""
        return self.first + np.argsort(-self.scores[self.first :], kind="stable")

    @cached_property
    def best_products(self) -> Floats:
        """The largest q·k of a key in each page, reduced over the query heads like the bound."""
        ranking = self.method.ranking(self.state, self.moment.queries, self.moment.keys)
        alone = _row(ranking.alone)[: self.end * self.method.page_size]
        best: Floats = alone.reshape(-1, self.method.page_size).max(-1)
        return best

    @cached_property
    def chosen(self) -> NDArray[np.int64]:
        """The ranked pages that the step fetches, ascending."""
        attended = self.moment.attended // self.method.page_size
        return np.unique(attended[(attended >= self.first) & (attended < self.end)])

    @cached_property
    def head_bounds(self) -> Floats:
        """The bound of the page `shown` for each query head."""
        page = self.bounds[..., self.shown : self.shown + 1]
        heads = [page_scores(self.moment.queries[:, [head]], page, group="mean") for head in range(self._heads)]
        return np.array([_row(bound)[0] for bound in heads], np.float32)

    @cached_property
    def products(self) -> Floats:
        """The q·k of the keys of the page `shown`, for the first query head."""
        keys = self.moment.keys[0, 0, self.positions(self.shown)].float()
        products: Floats = (keys @ self.moment.queries[0, 0].float()).numpy()
        return products

    @property
    def query(self) -> Floats:
        """The query of the first query head."""
        query: Floats = self.moment.queries[0, 0].float().numpy()
        return query

    @cached_property
    def channels(self) -> tuple[int, int]:
        """The channels with the largest part of the first query head's bound: of positive and of negative queries.

        If all have one sign, the two with the largest part.
        """
        page = self.bounds[0, 0, :, self.shown].unflatten(0, (2, -1))  # [2, D]
        by_channel = page.mT[:, None, :, None]  # each channel as a batch row of its own: [D, 1, 2, 1]
        parts = page_scores(self.moment.queries[0, 0, :, None, None], by_channel, group="mean").flatten().numpy()
        ranked, positive = np.argsort(-parts, kind="stable"), self.query > 0
        if positive.all() or not positive.any():
            return int(ranked[0]), int(ranked[min(1, len(ranked) - 1)])
        return int(ranked[positive[ranked]][0]), int(ranked[~positive[ranked]][0])

    @property
    def bounds(self) -> Tensor:
        """The channel-wise maxima and minima of all full pages, [1, 1, 2·D, P]."""
        bounds: Tensor = self.state.bounds.tensor
        return bounds

    @property
    def page_of_token(self) -> NDArray[np.int64]:
        """The page of each token of the prompt, -1 for tokens after the last full page."""
        pages = np.arange(self.moment.prompt_length) // self.method.page_size
        return np.where(pages < self.full, pages, -1)

    @property
    def _heads(self) -> int:
        return self.moment.group_size

    def box(self, page: int) -> tuple[Floats, Floats]:
        """The smallest and the largest value of each channel, from the state."""
        high, low = self.bounds[0, 0, :, page].float().numpy().reshape(2, -1)
        return low, high

    def keys(self, page: int) -> Floats:
        """The keys of a page, [page, D]."""
        keys: Floats = self.moment.keys[0, 0, self.positions(page)].float().numpy()
        return keys

    def positions(self, page: int) -> NDArray[np.int64]:
        """The positions of a page's tokens."""
        positions: NDArray[np.int64] = self.method.group_tokens(self.state, 0, page).numpy()
        return positions

    def part(self, page: int) -> NDArray[np.int64]:
        """The positions of at most MOST_CHIPS tokens of a page, the followed one among them if it is there."""
        positions = self.positions(page)
        place = int(np.searchsorted(positions, self.moment.token)) if self.moment.token in positions else 0
        start = max(min(place - MOST_CHIPS // 2, len(positions) - MOST_CHIPS), 0)
        return positions[start : start + MOST_CHIPS]

    def by_page_size(self) -> list[tuple[int, float, int]]:
        """Page size, recall, and the numbers that a step reads of all bounds, for this step with other page sizes."""
        results = []
        for size in sorted({*PAGE_SIZES, self.method.page_size}):
            try:
                method = replace(self.method, page_size=size)
                method.budget_tokens(self.moment.prompt_length)
            except InvalidInputError:  # the budget does not hold the least number of such pages
                continue
            moment, state = self._moment_of(method)
            ranked: int = method.recent_start(state) // size
            read = state.bounds.tensor[..., :ranked].numel()
            results.append((size, moment.recall, read))
        return results

    def _moment_of(self, method: Quest) -> tuple[Moment, Any]:
        """The same step by a method with other fields, and its state."""
        moment, prompt = self.moment, self.moment.prompt_length
        every = (moment.all_queries, moment.keys, moment.values)
        state = method.build(self.state.layer, *(tensor[:, :, :prompt] for tensor in every))
        state = method.extend(state, *(tensor[:, :, prompt:] for tensor in every))
        return replace(moment, state=state, selection=method.select(state, moment.queries)), state


def named(page: int) -> str:
    """A reference to a page as the begin of a sentence."""
    return refer(f"Page {page}", f"page:{page}")


def signed(number: SupportsFloat) -> str:
    """A number in a sentence, with a minus sign, and three digits where that is more than the whole ones."""
    value = float(number)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return text.replace("-", "−")


def _row(tensor: Tensor) -> Floats:
    """The values of the only selection head."""
    row: Floats = tensor[0, 0].numpy()
    return row
