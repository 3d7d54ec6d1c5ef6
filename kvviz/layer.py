"""One layer's cache: its store, the method's state, and the step from a query to an attention output."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from kvviz_kernels import gather_attention
from torch import Tensor

from .background import Worker
from .errors import InvalidInputError
from .methods.base import LayerContext, Method, State
from .offload.store import DeviceStore
from .selection import Selection, stack_rows

_worker = Worker()


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
    state: State | Future[State] | None = None
    ready: torch.cuda.Event | None = None


class LayerCache:
    """Keys and values of one layer, what the method knows of them, and decode attention over what it selects.

    With left padding each batch row gets a state of its own over its real tokens, so that methods never see padding.
    `observer`, if set, is told of every decode step.
    """

    def __init__(
        self, context: LayerContext, method: Method, store: DeviceStore | None = None, *, retain_queries: bool = False
    ) -> None:
        self.context = context
        self.method = method
        self.store = store or DeviceStore()
        self.retain_queries = retain_queries or (method.needs_queries and not method.is_dense(context.index))
        self.observer: StepObserver | None = None
        self.build_s = 0.0
        self.prompt_length = 0
        self.last: Selection | None = None
        self._queries: list[Tensor] = []
        self._rows: list[_Row] = []

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

    def runs(self) -> list[tuple[slice, int, State]]:
        """Batch rows, their left padding and their state, for each run of rows that share it."""
        return [(row.rows, row.start, self._state(row)) for row in self._rows]

    def bind(self, scale: float, softcap: float | None) -> None:
        """Take over the logits' scale and bound that the model's attention uses."""
        self.context = replace(self.context, scale=scale, softcap=softcap)

    def keep_queries(self, queries: Tensor) -> None:
        """Remember the queries [B, Q, n, D] of a part of the prompt, where they will be needed."""
        if self.retain_queries:
            self._queries.append(queries)

    def build(self, starts: list[int] | None = None) -> None:
        """Build the method's state from all stored tokens and the queries kept.

        `starts` [B] counts each row's left padding, None where there is none.
        """
        keys = self.store.keys
        check_finite(f"prefill of layer {self.context.index}", keys)
        self.prompt_length = keys.shape[2]
        self._rows = [_Row(slice(row, row + 1), start) for row, start in enumerate(starts or [])]
        self._rows = self._rows or [_Row(slice(0, keys.shape[0]), 0)]
        if self.dense:
            return
        if self.method.needs_queries:
            queries = torch.cat(self._queries, dim=2)
        else:
            queries = keys.new_empty((keys.shape[0], self.context.n_heads, 0, self.context.head_dim))
        for row in self._rows:
            self._build(row, queries)

    def fork(self, method: Method) -> LayerCache:
        """An independent copy of the stored tokens, built for another method."""
        if method.needs_queries and not self._queries:
            raise InvalidInputError(
                "fork of a cache",
                f"{method.name}, which needs the prompt's queries",
                "a cache made with retain_queries=True",
            )
        other = LayerCache(self.context, method, self.store.clone(), retain_queries=self.retain_queries)
        other._queries = list(self._queries)
        if self.built:
            starts = [row.start for row in self._rows]
            other.build(starts if any(starts) else None)
        return other

    def decode(self, queries: Tensor) -> Tensor:
        """Attention output [B, Q, D] of one query token [B, Q, D] over what the method selects.

        The token's own key and value are in the store already.
        """
        started = time.perf_counter()
        selection = self._select(queries)
        select_s = time.perf_counter() - started
        output, _ = gather_attention(
            queries,
            self.store.key_buffer,
            self.store.value_buffer,
            selection.indices,
            scale=self.context.scale,
            softcap=self.context.softcap,
            padded=selection.padded,
        )
        self.last = selection
        if self.observer is not None:
            self.observer(self, queries, selection, output, select_s)
        return output

    def _select(self, queries: Tensor) -> Selection:
        assert self.store.newest is not None
        keys, values = self.store.newest
        selections = []
        for row in self._rows:
            state = self._state(row)
            own = queries[row.rows]
            row.state = self.method.extend(state, own[:, :, None], keys[row.rows], values[row.rows])
            selections.append(self.method.select(row.state, own))
        if len(selections) == 1 and self._rows[0].start == 0:
            return selections[0]
        return stack_rows(selections, [row.start for row in self._rows])

    def _build(self, row: _Row, queries: Tensor) -> None:
        keys, values = self.store.keys[row.rows, :, row.start :], self.store.values[row.rows, :, row.start :]
        own = queries[row.rows, :, row.start :]

        def build() -> State:
            started = time.perf_counter()
            with torch.no_grad():  # a mode of the thread, so a worker sets its own
                state = self.method.build(self.context, own, keys, values)
            self.build_s += time.perf_counter() - started
            return state

        if not self.method.overlaps_build:
            row.state = build()
        elif keys.is_cuda:
            row.ready = torch.cuda.Event()
            written, ready = _event_now(keys.device), row.ready
            row.state = _worker.submit(lambda: _on_side_stream(build, (own, keys, values), written, ready))
        else:
            row.state = _worker.submit(build)

    def _state(self, row: _Row) -> State:
        if isinstance(row.state, Future):
            row.state = row.state.result()
        if row.ready is not None:
            torch.cuda.current_stream().wait_event(row.ready)
            row.ready = None
        assert row.state is not None
        return row.state


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def check_finite(operation: str, keys: Tensor) -> None:
    """Raise InvalidInputError where keys hold NaN or infinity."""
    finite = torch.isfinite(keys)
    if not bool(finite.all()):
        raise InvalidInputError(
            operation, f"NaN or infinity in the keys, first at {(~finite).nonzero()[0].tolist()}", "finite keys"
        )


def _event_now(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def _on_side_stream(
    build: Callable[[], State], inputs: tuple[Tensor, ...], written: torch.cuda.Event, ready: torch.cuda.Event
) -> State:
    """Run `build` beside the model's stream, once its inputs are `written`; `ready` says when to read the result.

    This runs in the worker thread, since k-means waits for its labels and would hold up the model's own launches.
    """
    stream = _side_stream(inputs[0].device)
    stream.wait_event(written)
    with torch.cuda.stream(stream):
        state = build()
    ready.record(stream)
    for tensor in inputs:  # keeps the allocator from reusing their memory before the side stream has read it
        tensor.record_stream(stream)
    return state
