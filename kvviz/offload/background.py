"""Work that runs concurrently with the model: in worker threads and, on CUDA, on side streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..trace.spans import NOTHING, Clock, HostClock

T = TypeVar("T")

# On the CPU, smaller copies are made at once, because a worker thread would cost more than it hides: with PQCache's
# codes of 4,000 tokens of SmolLM2 (30 layers, 27 kB each), a step took 83 ms with a worker and 74 ms without; with two
# OpenMP threads it took 111 ms and 65 ms (AMD EPYC, 2 shared cores).
WORKER_BYTES = 8 << 20

_in_line: ContextVar[bool] = ContextVar("kvviz_in_line", default=False)


class Worker:
    """A worker that runs submitted work in order, in a thread that ends when no work is left.

    A thread that has run torch on the CPU keeps its OpenMP threads until it ends. With more OpenMP threads than
    processors, all of them sleep between two operations instead of waiting actively: with an idle worker thread, a
    decode step of SmolLM2 took 59 ms instead of 46 ms (AMD EPYC, 2 cores).
    """

    def __init__(self, name: str) -> None:
        self._name = f"kvviz-{name}"
        self._lock = threading.Lock()
        self._pending = 0
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after all work submitted before; the future holds its result or its error."""
        with self._lock:
            self._pending += 1
            if self._executor is None:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)
            future = self._executor.submit(work)
        future.add_done_callback(self._finished)
        return future

    def _finished(self, _: object) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending == 0 and self._executor is not None:
                self._executor.shutdown(wait=False)
                self._executor = None


@contextmanager
def sequential() -> Iterator[None]:
    """A context in which this thread's clustering and transfers run in line: the model waits for each of them.

    Sequential instead of overlapped scheduling (PQCache, arXiv 2407.12820, fig. 7), to compare their timelines. It does
    not change results.
    """
    token = _in_line.set(True)
    try:
        yield
    finally:
        _in_line.reset(token)


class Pending(Generic[T]):
    """The result of work that runs concurrently with the model, in the order of its `stream`; `result` waits for it.

    Within `sequential` the work is done when this is created; its error is raised by `result` all the same.

    On the CPU a stream is a worker thread; on CUDA it is also a CUDA stream, which starts once `inputs` are written.
    `span`, from a timeline (`kvviz.trace.timeline.span`), is entered where the work runs, and records its time.
    """

    def __init__(
        self,
        work: Callable[[], T],
        inputs: tuple[Tensor, ...],
        *,
        stream: str,
        span: AbstractContextManager[None] = NOTHING,
    ) -> None:
        def recorded() -> T:
            with span:
                return work()

        self._ready: torch.cuda.Event | None = None
        self._future: Future[T]
        device = inputs[0].device
        if _in_line.get():
            self._future = _done(recorded)
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            return
        if device.type != "cuda":
            self._future = _worker(stream).submit(recorded)
            return
        written, self._ready = torch.cuda.Event(), torch.cuda.Event()
        written.record(torch.cuda.current_stream(device))
        ready = self._ready
        self._future = _worker(stream).submit(lambda: _on_side_stream(recorded, inputs, stream, written, ready))

    def result(self) -> T:
        """The result of the work, safe to read on the current stream; raises the error of the work."""
        result = self._future.result()
        if self._ready is not None:
            torch.cuda.current_stream().wait_event(self._ready)
        return result


def begin(
    work: Callable[[], T], inputs: tuple[Tensor, ...], count: int, recorded: AbstractContextManager[None]
) -> Pending[T] | Future[T]:
    """Begin `work`, a copy of `count` bytes: on the transfer stream, in a worker thread or, if small, at once.

    `inputs` are the tensors that it reads; `recorded` is the timeline's span, as for `Pending`.
    """
    if inputs[0].is_cuda or count >= WORKER_BYTES:
        return Pending(work, inputs, stream="transfer", span=recorded)

    def at_once() -> T:
        with recorded:
            return work()

    return _done(at_once)


def _done(work: Callable[[], T]) -> Future[T]:
    """The future of work done now; its error is raised when the result is read, as with a worker."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


class CudaClock:
    """A timeline's clock on a GPU; its marks are CUDA events on the thread's current stream."""

    name = "CUDA events"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self.mark()
        self._start.synchronize()  # the timeline's host clock starts at the same time

    def mark(self) -> torch.cuda.Event:
        """An event after all work launched so far on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        """Seconds from the clock's start to the mark; waits until the mark is reached."""
        mark.synchronize()
        return float(self._start.elapsed_time(mark)) / 1e3  # from milliseconds


def device_clock(device: torch.device) -> Clock:
    """The clock for work on this device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


@cache
def _worker(stream: str) -> Worker:
    return Worker(stream)


@cache
def _side_stream(device: torch.device, stream: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _on_side_stream(
    work: Callable[[], T], inputs: tuple[Tensor, ...], name: str, written: torch.cuda.Event, ready: torch.cuda.Event
) -> T:
    """Run `work` on a side stream, once its inputs are `written`; `ready` marks when its result can be read.

    This runs in the worker thread, since k-means waits for its labels and would delay the model's launches.
    """
    stream = _side_stream(inputs[0].device, name)
    stream.wait_event(written)
    with torch.cuda.stream(stream):
        result = work()
    ready.record(stream)
    for tensor in inputs:  # keeps the allocator from reusing their memory before the side stream has read it
        tensor.record_stream(stream)
    return result
