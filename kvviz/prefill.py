"""A prompt prefilled once for many methods."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch import Tensor

from .generation import fill, wait_for_states
from .hf import SelectiveCache
from .methods import resolve_prefill
from .methods.base import Method

if TYPE_CHECKING:
    from .models import LanguageModel


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

    @property
    def count(self) -> int:
        """How often the prompt was prefilled."""
        return len(self._filled)

    def cache(self, method: Method) -> tuple[SelectiveCache, int, float]:
        """A cache of the prompt for `method`, built; the prompt's next token; the seconds that both take alone."""
        source, first, prefill_s = self._base(method)
        started = time.perf_counter()
        cache = source.fork(method)
        wait_for_states(cache)
        return cache, first, prefill_s + time.perf_counter() - started

    def _base(self, method: Method) -> tuple[SelectiveCache, int, float]:
        own = method if self._sparse is None or method.name == "full" else self._sparse
        sparse = own.prefills_sparsely
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
