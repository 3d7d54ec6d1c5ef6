"""One layer's cache: its store, the method's state, and the step from a query to an attention output."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..clustering.merged import Merged, stack_merged
from ..errors import InvalidInputError
from ..methods.base import LayerContext, Method, State
from ..methods.capabilities import HostMetadata, Merging
from ..methods.selection import Selection, positions, stack_positions, stack_rows
from ..offload.background import Pending
from ..offload.device_store import DeviceStore
from ..offload.layer_store import LayerStore
from ..offload.token_cache import TokenCache
from ..trace.timeline import span
from .decoding import attend_selection
from .later_prompts import kept_inputs

FREE_INTERVAL = 64  # decoded tokens between two rounds of freeing: each round copies what is kept


class StepObserver(Protocol):
    """Is told of every decode step of a layer; recorders implement it."""

    def __call__(
        self, layer: LayerCache, queries: Tensor, selection: Selection, output: Tensor, select_s: float
    ) -> None:
        """`queries` [B, Q, D] attended `selection` and gave `output` [B, Q, D]; selecting took `select_s` seconds."""


@dataclass
class _Row:
    """A run of batch rows that share their left padding, and the method's state for them."""

    rows: slice
    start: int
    state: State | Pending[State] | None = None


class LayerCache:
    """Keys and values of one layer, what the method knows of them, and decode attention over what it selects.

    The keys and values lie in its `store`, a `LayerStore`; a `SelectiveLayer` shows the LayerCache to transformers.
    With left padding each batch row gets a state of its own over its real tokens, so that methods never see padding.
    `observer`, if set, is told of every decode step. Where the context asks for details, `history` also keeps the
    tokens that the method drops, so that a recorder can compare with exact attention; otherwise it is the store.
    """

    def __init__(
        self, context: LayerContext, method: Method, store: LayerStore | None = None, *, retain_queries: bool = False
    ) -> None:
        self.context = context
        self.method = method
        self.store: LayerStore = store or DeviceStore()
        self.history: LayerStore = self.store
        rebuilds = method.needs_queries and not method.drops_tokens and not method.is_dense(context.index)
        self.retain_queries = retain_queries or rebuilds  # of every token, for a fork or for building anew
        self.observer: StepObserver | None = None
        self.speculate: Callable[[], Tensor] | None = None  # a step's queries, guessed one layer before
        self.build_s = 0.0
        self.prompt_length = 0
        self.last: Selection | None = None
        self._queries: list[Tensor] = []
        self._rows: list[_Row] = []
        self._retained = 0  # slots in use after the last round of freeing

    @property
    def dense(self) -> bool:
        """Whether this layer attends everything by the method's choice."""
        return self.method.is_dense(self.context.index)

    @property
    def built(self) -> bool:
        """Whether a whole prompt has been seen."""
        return bool(self._rows)

    @property
    def states(self) -> list[State]:
        """The method's states, one for the batch or one for each padded row; waits for their building."""
        return [] if self.dense else [self._state(row) for row in self._rows]

    def merged(self) -> list[Merged | None]:
        """The tokens that the method has merged, for each of the states; None where there are none."""
        method = self.method
        return [method.merged(state) if isinstance(method, Merging) else None for state in self.states]

    def runs(self) -> list[tuple[slice, int, State]]:
        """Batch rows, their left padding and their state, for each run of rows that share it."""
        return [(row.rows, row.start, self._state(row)) for row in self._rows]

    def bind(self, scale: float, softcap: float | None) -> None:
        """Take over the logits' scale and bound that the model's attention uses."""
        self.context = replace(self.context, scale=scale, softcap=softcap)

    def keep_queries(self, queries: Tensor) -> None:
        """Remember the queries [B, Q, n, D] of a part of the prompt, where they will be needed."""
        if self.retain_queries or (self.method.needs_queries and not self.dense):
            self._queries.append(queries)

    def build(self, starts: list[int] | None = None) -> None:
        """Build the method's state from the stored tokens and the queries kept, or take a later prompt into it.

        `starts` [B] counts each row's left padding, None where there is none.
        """
        keys = self.store.keys
        check_finite(f"prefill of layer {self.context.index}", keys)
        self.prompt_length = self.store.length
        if not self._rows:
            self._rows = [_Row(slice(row, row + 1), start) for row, start in enumerate(starts or [])]
            self._rows = self._rows or [_Row(slice(0, keys.shape[0]), 0)]
        if self.dense:
            return
        if self.context.details and (self.method.drops_tokens or self.store.offloads):
            if self.history is self.store:
                self.history = DeviceStore()
            new = self.store.length - self.history.length
            self.history.append(*self.store.last(new))
        if self.method.needs_queries:
            queries = torch.cat(self._queries, dim=2)
        else:
            queries = keys.new_empty((keys.shape[0], self.context.n_heads, 0, self.context.head_dim))
        for row in self._rows:
            if row.state is None or not self._continue(row, queries):
                self._build(row, queries)
        if not self.retain_queries:
            self._queries = []
        self._free()
        self._offload_prompt()

    def fork(self, method: Method) -> LayerCache:
        """An independent copy of the stored tokens, built for another method.

        What this layer has built is copied where it serves: the method is the same but for its budget, which its state
        does not depend on, and nothing has been decoded.
        Raises InvalidInputError where tokens were dropped, or where queries are needed that were not kept.
        """
        if self._serves(method):
            return self._copied(method)
        if not self.store.complete:
            dropped = f"one whose tokens {self.method.name} dropped"
            raise InvalidInputError("fork of a cache", dropped, "a cache with every token")
        if method.needs_queries and not self._queries:
            needs = f"{method.name}, which needs the prompt's queries"
            raise InvalidInputError("fork of a cache", needs, "a cache made with retain_queries=True")
        other = LayerCache(self.context, method, self.store.clone(), retain_queries=self.retain_queries)
        other._queries = list(self._queries)
        if self.built:
            starts = [row.start for row in self._rows]
            other.build(starts if any(starts) else None)
        return other

    def _serves(self, method: Method) -> bool:
        same = type(method) is type(self.method) and replace(method, budget=self.method.budget) == self.method
        untouched = self.built and self.store.length == self.prompt_length and not self.store.offloads
        return same and untouched and method.builds_for_any_budget

    def _copied(self, method: Method) -> LayerCache:
        _ = self.states  # work that is still under way cannot be copied
        shared = (self.speculate, self.observer)  # the first belongs to the model, whose weights must not be copied
        other = copy.deepcopy(self, {id(one): one for one in shared})
        other.method, other.observer = method, None
        return other

    def prompt_inputs(self, new: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Keys, values and an additive mask with which a later prompt's `new` tokens attend (see `kept_inputs`).

        None where no token was dropped: then the model's own mask is right.
        """
        if self.built and not self.dense:
            self._free()  # what was dropped since the last round is not attended any more
        if self.store.complete:
            return None
        assert isinstance(self.store, DeviceStore)  # no other drops tokens
        merged = stack_merged(self.merged())
        return kept_inputs(self.store, merged, self.context.n_heads // self.context.n_kv_heads, new)

    def decode(self, queries: Tensor) -> Tensor:
        """Attention output [B, Q, D] of one query token [B, Q, D] over what the method selects.

        The token's own key and value are in the store already.
        """
        _ = self.states  # waiting for them is no selection
        started = time.perf_counter()
        with span(self.store.timeline, "compute", "select"):
            selection = self._select(queries)
        select_s = time.perf_counter() - started
        if selection.groups is not None and selection.host_part is None:
            self.store.count_groups(selection.indices, selection.groups)
        with span(self.store.timeline, "compute", "attention"):
            output = attend_selection(queries, self.store, selection, self.context.scale, self.context.softcap)
        self.last = selection
        if self.retain_queries:
            self._queries.append(queries[:, :, None])
        if self.history is not self.store:
            self.history.append(*self.store.last(1))
        if self.observer is not None:
            self.observer(self, queries, selection, output, select_s)
        if self.store.used - self._retained >= FREE_INTERVAL:
            self._free()
        if self.store.offloads:
            with span(self.store.timeline, "compute", "store"):
                self.store.offload(max(self.method.local_window(self._state(row)) for row in self._rows))
        return output

    def prefetch(self) -> None:
        """Begin to fetch what the next step reads of metadata that the host keeps."""
        for row in self._rows:
            if isinstance(row.state, HostMetadata):  # that of a state still being built comes when it is read
                row.state.prefetch()

    def _select(self, queries: Tensor) -> Selection:
        keys, values = self.store.last(1)
        asking = queries if self.speculate is None else self.speculate()
        selections = []
        for row in self._rows:
            state = self.method.extend(self._state(row), queries[row.rows, :, None], keys[row.rows], values[row.rows])
            row.state = state
            selections.append(self.method.select(state, asking[row.rows]))
        if len(selections) == 1 and self._rows[0].start == 0:
            return selections[0]
        return stack_rows(selections, [row.start for row in self._rows])

    def _offload_prompt(self) -> None:
        """Offload a prompt but for its sinks and recent window, where the store keeps tokens on a lower tier."""
        if not self.store.offloads:
            return
        length = self.store.length
        starts = torch.tensor([row.start for row in self._rows], device=self.store.keys.device)
        pinned = (starts[:, None] + torch.arange(self.method.sinks, device=starts.device)).clamp(max=length - 1)
        if len(self._rows) < self.store.batch:
            pinned = pinned.expand(self.store.batch, -1)
        windows = [State(self.context, length - row.start, length - row.start) for row in self._rows]
        with span(self.store.timeline, "compute", "store"):
            self.store.offload(max(map(self.method.recent_window, windows)), pinned)

    def _continue(self, row: _Row, queries: Tensor) -> bool:
        """Let the method take a later prompt into its state; False where it wants to build anew."""
        state = self._state(row)
        new = self.store.length - row.start - state.length
        keys, values = self.store.last(new)
        started = time.perf_counter()
        own = queries[row.rows, :, queries.shape[2] - new :] if queries.shape[2] else queries[row.rows]
        with span(self.store.timeline, "clustering", "build"):
            later = self.method.continue_prompt(state, own, keys[row.rows], values[row.rows])
        self.build_s += time.perf_counter() - started
        if later is None:
            return False
        row.state = later
        return True

    def _build(self, row: _Row, queries: Tensor) -> None:
        keys, values = self.store.keys[row.rows, :, row.start :], self.store.values[row.rows, :, row.start :]
        own = queries[row.rows, :, row.start :]
        context = replace(self.context, cached=TokenCache(self.store, row.rows, row.start))
        recorded = span(self.store.timeline, "clustering", "build")

        def build() -> State:
            started = time.perf_counter()
            with torch.no_grad(), recorded:  # no_grad is a mode of the thread, so a worker sets its own
                state: State = self.method.build(context, own, keys, values)
            self.build_s += time.perf_counter() - started
            return state

        row.state = Pending(build, (own, keys, values), stream="build") if self.method.overlaps_build else build()

    def _state(self, row: _Row) -> State:
        if isinstance(row.state, Pending):
            row.state = row.state.result()
        assert row.state is not None
        return row.state

    def _free(self) -> None:
        """Free the keys and values that the method will never attend again; tokens it has not seen yet stay."""
        self._retained = self.store.used
        if not self.method.drops_tokens:
            return
        kept: list[Tensor] = []
        for row in self._rows:
            state = self._state(row)
            wanted = self.method.keeps(state)
            if wanted is None:
                batch = row.rows.stop - row.rows.start
                wanted = positions(0, state.length, batch, self.context.n_kv_heads, self.store.keys.device)
            unseen = positions(state.length, self.store.length - row.start, *wanted.shape[:2], wanted.device)
            kept.append(torch.cat([wanted, unseen], dim=-1))
        if max(wanted.shape[-1] for wanted in kept) < self.store.used:
            assert isinstance(self.store, DeviceStore)  # no other is given to a method that drops tokens
            self.store.retain(stack_positions(kept, [row.start for row in self._rows]))
            self._retained = self.store.used


def check_finite(operation: str, keys: Tensor) -> None:
    """Raise InvalidInputError where keys hold NaN or infinity."""
    finite = torch.isfinite(keys)
    if not bool(finite.all()):
        first = (~finite).nonzero()[0].tolist()
        raise InvalidInputError(operation, f"NaN or infinity in the keys, first at {first}", "finite keys")
