"""A prompt prefilled once for many methods."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ..cache.selective_cache import SelectiveCache
from ..methods import resolve_prefill
from ..methods.base import Method
from ..methods.capabilities import SparsePrefill
from .generating import fill, wait_for_states

if TYPE_CHECKING:
    from ..models import LanguageModel


class SharedPrefill:
    """A prompt that is prefilled once for all methods that attend it in the same way, and copied for each.

    `prefill` as for `generate`. `retain_queries`: whether a method comes that needs the prompt's queries. `details` as
    for `SelectiveCache`. `count` says how often the prompt was prefilled: once, but for methods with a sparse prefill
    of their own. To be used inside `attached(lm.model)`.
    """

    def __init__(
        self,
        lm: LanguageModel,
        ids: Tensor,
        *,
        retain_queries: bool,
        prefill: str | Method | None = None,
        details: bool = False,
    ) -> None:
        self.lm = lm
        self.ids = ids
        self._retain_queries = retain_queries
        self._details = details
        self._sparse = None if prefill is None else resolve_prefill(prefill)
        self._filled: dict[str, tuple[SelectiveCache, int, float]] = {}
        self._built: tuple[SelectiveCache, float] | None = None  # the last one whose state serves every budget

    @property
    def count(self) -> int:
        """How often the prompt was prefilled."""
        return len(self._filled)

    def cache(self, method: Method) -> tuple[SelectiveCache, int, float]:
        """A cache of the prompt for `method`, built; the prompt's next token; the seconds that both take alone.

        A state that serves every budget is built once for the budgets of a method that come one after the other; its
        seconds count for each.
        """
        source, first, ready_s = self._base(method)
        if method.builds_for_any_budget:
            source, build_s = self._built_by(method, source)
            ready_s += build_s
        started = time.perf_counter()
        cache = source.fork(method)
        wait_for_states(cache)
        return cache, first, ready_s + time.perf_counter() - started

    def _built_by(self, method: Method, source: SelectiveCache) -> tuple[SelectiveCache, float]:
        """The prompt built by this method at any budget, kept until another method comes, and the seconds it took."""
        if self._built is not None:
            held = self._built[0].method
            if type(held) is type(method) and replace(method, budget=held.budget) == held:
                return self._built
        self._built = None  # frees the one before
        started = time.perf_counter()
        built = source.fork(method)
        wait_for_states(built)
        self._built = built, time.perf_counter() - started
        return self._built

    def _base(self, method: Method) -> tuple[SelectiveCache, int, float]:
        exact = method.ignores_budget and not isinstance(method, SparsePrefill)  # as what others are measured by
        own = method if self._sparse is None or exact else self._sparse
        sparse = isinstance(own, SparsePrefill)
        key = repr(own) if sparse else "exact"
        if key not in self._filled:
            cache = SelectiveCache(
                self.lm.model,
                "full",
                prefill=own if sparse else None,
                details=self._details,
                retain_queries=self._retain_queries,
            )
            started = time.perf_counter()
            first = fill(self.lm, cache, self.ids)
            self._filled[key] = (cache, first, time.perf_counter() - started)
        return self._filled[key]
