"""The KV cache of one layer: its store, the method's state, and the decode step from query to attention output."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..clustering.merged import Merged, stack_merged
from ..errors import InvalidInputError
from ..methods.base import LayerContext, Method, State
from ..methods.capabilities import HostMetadata, Merging
from ..methods.full import Full
from ..methods.selection import Selection, stack_rows
from ..metrics.byte_budgets import Bytes
from ..offload.background import Pending
from ..offload.device_store import DeviceStore
from ..offload.layer_store import LayerStore
from ..offload.token_cache import TokenCache
from ..trace.edits import Edit
from ..trace.timeline import span
from .decoding import attend_selection
from .editing import LayerEdit
from .fitting import Room, fit, fit_continued, fit_reused
from .freeing import Kept, needed_positions
from .later_prompts import kept_inputs
from .rows import Row, Run
from .tiers import DEVICE, make_store

FREE_INTERVAL = 64  # decoded tokens between two rounds of freeing evicted tokens: each copies the kept tokens


class LayerCache:
    """The KV cache of one layer: keys and values, the method's state, and decode attention over the selection.

    The keys and values are in its `store`, a `LayerStore`; a `SelectiveLayer` makes the LayerCache a transformers
    layer. With left padding each batch row has its own state over its real tokens, so that methods never see padding.
    `observer`, if set, is called after each decode step. If the context asks for details, `history` also keeps the
    tokens that the method drops, or stores in fewer bits, so that a recorder can compare with exact attention;
    otherwise it is the store.
    `edit` changes what the method chose; a dense layer whose attention it changes selects all tokens. `given` is the
    method as it was passed; once a prompt is complete, `method` has its budget in tokens if it was given in bytes.
    """

    def __init__(
        self,
        context: LayerContext,
        method: Method,
        store: LayerStore | None = None,
        *,
        retain_queries: bool = False,
        edit: Edit | None = None,
    ) -> None:
        self.edit = LayerEdit.of(edit, method, context.index)
        if self.edit is not None:
            context = replace(context, details=True)  # an edit goes by groups and scores
            method = Full() if method.is_dense(context.index) else method
        self.context = context
        self.given = method
        self.store: LayerStore = store or make_store(DEVICE, context, method)
        self.history: LayerStore = self.store
        rebuilds = method.needs_queries and not method.drops_tokens and not method.is_dense(context.index)
        self.retain_queries = retain_queries or rebuilds  # of all tokens, for a fork or for a new build
        # Gets this layer, the queries [B, Q, D], their selection, the output [B, Q, D] and the selection's seconds.
        self.observer: Callable[[LayerCache, Tensor, Selection, Tensor, float], None] | None = None
        self.speculate: Callable[[], Tensor] | None = None  # a step's queries, speculated one layer before
        self.build_s = 0.0
        self.prompt_length = self.prompt_bytes = 0  # bytes on the device, before tokens are dropped or offloaded
        self.last: Selection | None = None
        self._queries: list[Tensor] = []
        self._rows: list[Row] = []
        self._retained = 0  # slots in use after the last round of freeing

    @property
    def method(self) -> Method:
        """The method; for a budget in bytes, once the state is built, with the budget in tokens of the first row."""
        return self._method_of(self._rows[0]) if self._rows else self.given

    @property
    def dense(self) -> bool:
        """Whether the method attends to all tokens in this layer."""
        return self.edit is None and self.given.is_dense(self.context.index)

    @property
    def built(self) -> bool:
        """Whether the state of a whole prompt was built."""
        return bool(self._rows)

    @property
    def states(self) -> list[State]:
        """The method's states, one for the batch or one per padded row; waits until they are built."""
        return [] if self.dense else [self._state(row) for row in self._rows]

    def merged(self) -> list[Merged | None]:
        """The merged tokens of each state, None without any."""
        method = self.method
        return [method.merged(state) if isinstance(method, Merging) else None for state in self.states]

    def runs(self) -> list[Run]:
        """The batch rows, left padding, state and method of each run of rows with the same padding."""
        return [Run(row.rows, row.start, self._state(row), self._method_of(row)) for row in self._rows]

    def group_tokens(self, head: int, number: int) -> tuple[int, ...]:
        """The positions of a group's tokens (`kvviz.group`). Raises InvalidInputError if there is no such group."""
        states, method = self.states, self.method
        found = method.group_tokens(states[0], head, number) if states else None
        if found is None or not len(found):
            got = f"number {number} in layer {self.context.index}, head {head}, of {method.name}"
            raise InvalidInputError("group", got, "a group with tokens, of a method that groups them in this layer")
        return tuple(found.tolist())

    def bind(self, scale: float, softcap: float | None) -> None:
        """Use the scale and soft cap of the model's attention logits."""
        self.context = replace(self.context, scale=scale, softcap=softcap)

    def keep_queries(self, queries: Tensor) -> None:
        """Keep the queries [B, Q, n, D] of a part of the prompt, if they will be needed."""
        if self.retain_queries or (self.method.needs_queries and not self.dense):
            self._queries.append(queries)

    def build(self, starts: list[int] | None = None) -> None:
        """Build the method's state from the stored tokens and the kept queries, or add a later prompt to it.

        `starts` [B] counts each row's left padding; None means no padding.
        """
        keys = self.store.keys
        check_finite(f"prefill of layer {self.context.index}", keys)
        self.prompt_length, self.prompt_bytes = self.store.length, self.store.kept_bytes()["device"]
        if not self._rows:
            self._rows = [Row(slice(row, row + 1), start) for row, start in enumerate(starts or [])]
            self._rows = self._rows or [Row(slice(0, keys.shape[0]), 0)]
        if self.dense:
            self.store.compress(starts)
            return
        if self.context.details and (self.method.drops_tokens or self.store.offloads or not self.store.exact):
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
        if self.edit is not None:
            self.edit.check(self.method, self.context, self.prompt_length, self.store.batch)
        if not self.retain_queries:
            self._queries = []
        if self.store.offloads:
            self.store.step_tokens = self._step_tokens()
        self._free()
        self.store.compress(starts)
        self._offload_prompt()

    def fork(self, method: Method, edit: Edit | None = None) -> LayerCache:
        """An independent copy of the stored tokens, built for another method, and with an edit.

        The built state is copied if the method can reuse it (`Method.reuse`), no token was decoded, and the cache has
        the details that an edit needs.
        Raises InvalidInputError if tokens were dropped or are only there in fewer bits, or if queries are needed that
        were not kept, and BudgetTooSmallError.
        """
        of_layer = LayerEdit.of(edit, method, self.context.index)
        editable = self.context.details and not self.dense and not method.drops_tokens
        reused = self._reused(method) if self.edit is None and (of_layer is None or editable) else None
        if reused is not None:
            copied = self._copied(method, reused)
            if of_layer is not None:
                of_layer.check(copied.method, self.context, self.prompt_length, self.store.batch)
                copied.edit = of_layer
            return copied
        if not self.store.complete:
            got = f"a cache whose tokens {self.method.name} dropped"
            raise InvalidInputError("fork of a cache", got, "a cache with all tokens")
        if method.needs_queries and not self._queries:
            got = f"{method.name}, which needs the prompt's queries"
            raise InvalidInputError("fork of a cache", got, "a cache made with retain_queries=True")
        fork = LayerCache(
            self.context, method, self._copied_tokens(method), retain_queries=self.retain_queries, edit=edit
        )
        fork._queries = list(self._queries)
        if self.built:
            starts = [row.start for row in self._rows]
            fork.build(starts if any(starts) else None)
        return fork

    def _reused(self, method: Method) -> list[Row] | None:
        """The rows with the states that `method` can take from this cache's, before any step; None if it has to build.

        They share tensors with this cache.
        """
        only_prompt = self.built and self.store.length == self.prompt_length and not self.store.offloads
        if self.dense or not only_prompt or type(method) is not type(self.method):
            return None
        rows = []
        for run in self.runs():
            room = None
            if isinstance(method.budget, Bytes):
                keys, values = (part[run.rows, :, run.start :] for part in (self.store.keys, self.store.values))
                room = self._room(keys, values)
            found = fit_reused(method, run.method, run.state, room)
            if found is None:
                return None
            rows.append(Row(run.rows, run.start, found[1], None if found[0] is method else found[0]))
        return rows

    def _copied_tokens(self, method: Method) -> LayerStore:
        """A store for another method with a copy of all tokens: exact, but for a dense layer of the same method."""
        if self.dense and method.same_except(self.method, "budget"):
            return self.store.clone()
        source = self.store if self.store.exact else self.history
        if not source.exact:
            got = f"a cache whose tokens {self.method.name} stored in fewer bits"
            raise InvalidInputError("fork of a cache", got, "a cache with exact keys and values")
        store = make_store(DEVICE, self.context, method)
        if store.exact:
            return source.clone()
        store.append(source.keys, source.values)
        return store

    def _copied(self, method: Method, rows: list[Row]) -> LayerCache:
        # `speculate` and the prompt refer to the model, whose weights must not be copied
        shared = (self.speculate, self.observer, self.context.prompt)
        reusing = copy.copy(self)
        reusing._rows = rows
        copied = copy.deepcopy(reusing, {id(part): part for part in shared})
        copied.given, copied.observer = method, None
        return copied

    def prompt_inputs(self, new: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Keys, values and an additive mask with which a later prompt's `new` tokens attend (see `kept_inputs`).

        None if no token was dropped: then the model's mask is correct.
        """
        if self.built and not self.dense:
            self._free()  # tokens dropped since the last round are not attended to any more
        if self.store.complete:
            return None
        assert isinstance(self.store, DeviceStore)  # only this store drops tokens
        merged = stack_merged(self.merged())
        return kept_inputs(self.store, merged, self.context.n_heads // self.context.n_kv_heads, new)

    def decode(self, queries: Tensor) -> Tensor:
        """Attention output [B, Q, D] of one token's queries [B, Q, D] over the method's selection.

        The token's key and value are already in the store.
        """
        _ = self.states  # wait first: this does not count as selection time
        started = time.perf_counter()
        with span(self.store.timeline, "compute", "select"):
            selection = self._select(queries)
        select_s = time.perf_counter() - started
        if self.history is not self.store:
            self.history.append(*self.store.last(1))
        if self.edit is not None:
            step, starts = self.store.length - 1 - self.prompt_length, [row.start for row in self._rows]
            starts = starts * self.store.batch if len(starts) == 1 else starts
            selection = self.edit.apply(
                selection, queries, step, starts, self.runs(), self.method, self.context, self.history
            )
        if selection.groups is not None and selection.host_part is None:
            self.store.count_groups(selection.indices, selection.groups)
        with span(self.store.timeline, "compute", "attention"):
            output = attend_selection(queries, self.store, selection, self.context.scale, self.context.softcap)
        self.last = selection
        if self.retain_queries:
            self._queries.append(queries[:, :, None])
        if self.observer is not None:
            self.observer(self, queries, selection, output, select_s)
        self.store.compress()
        pinned = 0 if self.edit is None else len(self.edit.pinned)  # stay, so that they are no reason to free again
        merged = isinstance(self.method, Merging) and (
            max(map(self.method.raw_tokens, self.states)) + pinned < self.store.used
        )
        if merged or self.store.used - self._retained >= FREE_INTERVAL:  # merging is rare: its tokens are freed at once
            self._free()
        if self.store.offloads:
            with span(self.store.timeline, "compute", "store"):
                window = max(run.method.local_window(run.state) for run in self.runs())
                self.store.offload(window, copied=int(self.method.attends_on_host))
        return output

    def prefetch(self) -> None:
        """Start to prefetch the metadata on the host that the next step reads."""
        for row in self._rows:
            if isinstance(row.state, HostMetadata):  # a state still being built fetches its metadata when it needs them
                row.state.prefetch()

    def _select(self, queries: Tensor) -> Selection:
        keys, values = self.store.last(1)
        selecting = queries if self.speculate is None else self.speculate()
        selections = []
        for row in self._rows:
            method = self._method_of(row)
            state = method.extend(self._state(row), queries[row.rows, :, None], keys[row.rows], values[row.rows])
            row.state = state
            selections.append(method.select(state, selecting[row.rows]))
        if len(selections) == 1 and self._rows[0].start == 0:
            return selections[0]
        return stack_rows(selections, [row.start for row in self._rows])

    def _offload_prompt(self) -> None:
        """Offload a prompt except its sinks and recent window, if the store keeps tokens on a lower tier."""
        if not self.store.offloads:
            return
        starts = torch.tensor([row.start for row in self._rows], device=self.store.keys.device)
        pinned = (starts[:, None] + torch.arange(self.method.sinks, device=starts.device)).expand(self.store.batch, -1)
        pinned = pinned.clamp(max=self.store.length - 1)
        with span(self.store.timeline, "compute", "store"):
            window = max(map(self._local_window, self._rows))
            self.store.offload(window, pinned, copied=int(self.method.attends_on_host))

    def _local_window(self, row: Row) -> int:
        """The last tokens of the row's prompt that stay on the device."""
        if isinstance(row.state, State):
            return self._method_of(row).local_window(row.state)
        length = self.store.length - row.start  # the state is still being built
        return self.method.recent_window(State(self.context, length, length))

    def _continue(self, row: Row, queries: Tensor) -> bool:
        """Let the method add a later prompt to its state; False if it needs a new build."""
        state = self._state(row)
        new = self.store.length - row.start - state.length
        keys, values = self.store.last(new)
        started = time.perf_counter()
        new_queries = queries[row.rows, :, queries.shape[2] - new :] if queries.shape[2] else queries[row.rows]
        new_tokens = new_queries, keys[row.rows], values[row.rows]

        in_bytes = isinstance(self.given.budget, Bytes) and not self.given.ignores_budget
        with span(self.store.timeline, "clustering", "build"):
            if in_bytes:
                room = self._room(*new_tokens[1:], self.store.length - row.start)
                shared = (self.store, self.context.prompt)
                row.method, continued = fit_continued(self.given, self._method_of(row), state, new_tokens, room, shared)
            else:
                continued = self.given.continue_prompt(state, *new_tokens)
        self.build_s += time.perf_counter() - started
        if continued is None:
            return False
        row.state = continued
        return True

    def _build(self, row: Row, queries: Tensor) -> None:
        keys, values = self.store.keys[row.rows, :, row.start :], self.store.values[row.rows, :, row.start :]
        q = queries[row.rows, :, row.start :]
        context = replace(self.context, cached=TokenCache(self.store, row.rows, row.start))
        timed = span(self.store.timeline, "clustering", "build")

        def build(method: Method = self.given) -> State:
            started = time.perf_counter()
            with torch.no_grad(), timed:  # no_grad applies per thread, so a worker has to set it too
                state: State = method.build(context, q, keys, values)
            self.build_s += time.perf_counter() - started
            return state

        if isinstance(self.given.budget, Bytes) and not self.given.ignores_budget:
            # Without overlap, since the store needs the budget.
            row.method, row.state = fit(self.given, build, self._room(keys, values))
        else:
            row.state = Pending(build, (q, keys, values), stream="build") if self.given.overlaps_build else build()

    def _room(self, keys: Tensor, values: Tensor, length: int | None = None) -> Room:
        return Room.of(keys, values, self.store, [row.start for row in self._rows], length)

    def _step_tokens(self) -> int | None:
        """The most tokens that a KV head attends to, if only the prompt has told: for a budget in bytes."""
        per_kv_head = self.context.selection_heads(self.given.group) // self.context.n_kv_heads
        found = [row.method.budget_tokens(self.prompt_length) for row in self._rows if row.method is not None]
        return max(found) * per_kv_head if found else None

    def _method_of(self, row: Row) -> Method:
        return self.given if row.method is None else row.method

    def _state(self, row: Row) -> State:
        if isinstance(row.state, Pending):
            row.state = row.state.result()
        assert row.state is not None
        return row.state

    def _free(self) -> None:
        """Free the keys and values of dropped tokens; tokens that the method has not seen yet stay."""
        self._retained = self.store.used
        if not self.method.drops_tokens or (self.edit is not None and self.edit.keeps_all):
            return
        assert isinstance(self.store, DeviceStore)  # methods that drop tokens always get this store
        kept = [
            Kept(run.rows.stop - run.rows.start, run.start, run.state.length, self._keeps(run)) for run in self.runs()
        ]
        needed = needed_positions(self.store, kept, self.context.n_kv_heads)
        if needed is not None:
            self.store.retain(needed)
            self._retained = self.store.used

    def _keeps(self, run: Run) -> Tensor | None:
        """The positions [B, H, K] that later steps may attend to, by the method's choice or the edit; None for all."""
        kept = run.method.keeps(run.state)
        return kept if kept is None or self.edit is None else self.edit.kept(kept, run.state.length, run.rows)


def check_finite(operation: str, keys: Tensor) -> None:
    """Raise InvalidInputError if keys contain NaN or infinity. The meta device has shapes only."""
    if keys.is_meta:
        return
    finite = torch.isfinite(keys)
    if not finite.all():
        got = f"NaN or infinity in the keys, first at {(~finite).nonzero()[0].tolist()}"
        raise InvalidInputError(operation, got, "finite keys")
