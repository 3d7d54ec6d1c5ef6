"""Work beside the model's own: in worker threads and, on CUDA, on side streams."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..trace.spans import NOTHING, Clock, HostClock

T = TypeVar("T")

# Fewer bytes than this are copied at once on the CPU, where a worker thread costs more than it hides: with PQCache's
# codes of 4,000 tokens of SmolLM2 (30 layers, 27 kB each) a step took 83 ms with one and 74 ms without, at two OpenMP
# threads 111 ms and 65 ms (AMD EPYC, 2 cores, shared with others).
WORKER_BYTES = 8 << 20


class Worker:
    """Runs submitted work in order, in a thread that lives only while there is some.

    A thread that has run torch on the CPU keeps OpenMP threads of its own for as long as it lives. More OpenMP threads
    than processors make all of them sleep between two operations instead of waiting: with an idle worker kept around, a
    decode step of SmolLM2 took 59 ms instead of 46 ms (AMD EPYC, 2 cores).
    """

    def __init__(self, name: str) -> None:
        self._name = f"kvviz-{name}"
        self._lock = threading.Lock()
        self._pending = 0
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Start `work` after all that was submitted before; its result or its error comes with the future."""
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


class Pending(Generic[T]):
    """The result of work that runs beside the model's, in the order of its `stream`; `result` waits for it.

    On the CPU a stream is a worker thread, on CUDA also a stream of its own, which starts once `inputs` are written.
    `span` is a timeline's (`kvviz.trace.timeline.span`): it is entered where the work runs and records when.
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
        if device.type != "cuda":
            self._future = _worker(stream).submit(recorded)
            return
        written, self._ready = torch.cuda.Event(), torch.cuda.Event()
        written.record(torch.cuda.current_stream(device))
        ready = self._ready
        self._future = _worker(stream).submit(lambda: _on_side_stream(recorded, inputs, stream, written, ready))

    def result(self) -> T:
        """What the work returned, safe to read on the current stream; raises what it raised."""
        found = self._future.result()
        if self._ready is not None:
            torch.cuda.current_stream().wait_event(self._ready)
        return found


def begin(
    work: Callable[[], T], inputs: tuple[Tensor, ...], count: int, recorded: AbstractContextManager[None]
) -> Pending[T] | Future[T]:
    """Begin `work`, a copy of `count` bytes: on the transfer stream, in a worker thread, or done at once if small.

    `inputs` and `recorded` as for `Pending`: tensors that it reads, and the timeline's span.
    """
    if inputs[0].is_cuda or count >= WORKER_BYTES:
        return Pending(work, inputs, stream="transfer", span=recorded)
    done: Future[T] = Future()
    try:
        with recorded:
            done.set_result(work())
    except Exception as error:  # raised where the result is asked for, as by a worker
        done.set_exception(error)
    return done


class CudaClock:
    """A timeline's clock on a GPU: its marks are CUDA events on the stream that is current in the thread."""

    name = "CUDA events"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = self.mark()
        self._start.synchronize()  # the timeline's clock of the host starts now

    def mark(self) -> torch.cuda.Event:
        """An event behind what was launched so far on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        """Seconds from the clock's start to the mark; waits until the mark is reached."""
        mark.synchronize()
        return float(self._start.elapsed_time(mark)) / 1e3  # milliseconds there


def device_clock(device: torch.device) -> Clock:
    """The clock for what runs on that device."""
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
    """Do `work` beside the model's stream, once its inputs are `written`; `ready` says when to read the result.

    This runs in the worker thread, since k-means waits for its labels and would hold up the model's own launches.
    """
    stream = _side_stream(inputs[0].device, name)
    stream.wait_event(written)
    with torch.cuda.stream(stream):
        found = work()
    ready.record(stream)
    for tensor in inputs:  # keeps the allocator from reusing their memory before the side stream has read it
        tensor.record_stream(stream)
    return found
