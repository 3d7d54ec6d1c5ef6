"""SharedPrefill: a prompt that is prefilled once for many methods."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from torch import Tensor

from ..cache.selective_cache import SelectiveCache
from ..methods import resolve, resolve_prefill
from ..methods.base import Method
from ..methods.capabilities import Quantising, SparsePrefill
from ..trace.edits import Edit
from .generating import fill, wait_for_states

if TYPE_CHECKING:
    from ..models import LanguageModel


class SharedPrefill:
    """A prompt that is prefilled once for all methods with the same prefill, and copied for each of them.

    `prefill` as for `generate`. `retain_queries`: whether a later method needs the prompt's queries. `details` as for
    `SelectiveCache`. `count` is the number of prefills: one, and one more for each different sparse prefill of the
    methods. Use it inside `attached(lm.model)`.
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
        self._filled: dict[str, tuple[SelectiveCache, Tensor, float]] = {}
        self._built: tuple[SelectiveCache, float] | None = None  # the last cache whose state fits all budgets

    @property
    def count(self) -> int:
        """Number of prefills of the prompt."""
        return len(self._filled)

    def cache(self, method: Method, edit: Edit | None = None) -> tuple[SelectiveCache, Tensor, float]:
        """The built cache of the prompt for `method`, the next token's logits [V], and the seconds of both, unshared.

        A state that fits all budgets is built once for consecutive budgets of a method; its seconds count for each
        budget.
        """
        source, logits, ready_s = self._base(method)
        if edit is not None and edit.grouped:
            edit = edit.with_groups(self.cache(method)[0].group_tokens)
        if method.builds_for_any_budget and (edit is None or self._details):
            source, build_s = self._built_by(method, source)
            ready_s += build_s
        started = time.perf_counter()
        cache = source.fork(method, edit)
        wait_for_states(cache)
        return cache, logits, ready_s + time.perf_counter() - started

    def exact(self) -> tuple[SelectiveCache, Tensor]:
        """The cache of the prompt under exact attention, not to be changed, and the next token's logits [V]."""
        return self._base(resolve("full"))[:2]

    def _built_by(self, method: Method, source: SelectiveCache) -> tuple[SelectiveCache, float]:
        """The cache built by this method for all budgets, kept until the next method, and the seconds of the build."""
        if self._built is not None and method.same_except(self._built[0].method, "budget"):
            return self._built
        self._built = None  # frees the previous cache
        started = time.perf_counter()
        built = source.fork(method)
        wait_for_states(built)
        self._built = built, time.perf_counter() - started
        return self._built

    def _base(self, method: Method) -> tuple[SelectiveCache, Tensor, float]:
        exact = method.ignores_budget and not isinstance(method, SparsePrefill | Quantising)  # `full`, the reference
        prefill = method if self._sparse is None or exact else self._sparse
        sparse = isinstance(prefill, SparsePrefill)
        key = repr(prefill) if sparse else "exact"
        if key not in self._filled:
            cache = SelectiveCache(
                self.lm.model,
                "full",
                prefill=prefill if sparse else None,
                details=self._details,
                retain_queries=self._retain_queries,
            )
            started = time.perf_counter()
            logits = fill(self.lm, cache, self.ids)
            self._filled[key] = (cache, logits, time.perf_counter() - started)
        return self._filled[key]
