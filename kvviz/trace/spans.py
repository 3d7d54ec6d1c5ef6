"""Spans of work, recorded by the threads that do it, with clocks that do not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

NOTHING: AbstractContextManager[None] = nullcontext()  # the context used when nothing is recorded


class Clock(Protocol):
    """A clock that takes marks without waiting, and later gives their times."""

    @property
    def name(self) -> str:
        """The clock's name in timelines."""

    def mark(self) -> Any:
        """A mark after all work launched so far on the current stream."""

    def seconds(self, mark: Any) -> float:
        """Seconds from the clock's start to the mark; waits until the mark is reached."""


class HostClock:
    """The processor's clock: a mark is the time at which it is taken."""

    name = "clock"

    def __init__(self) -> None:
        self._start_s = time.perf_counter()

    def mark(self) -> float:
        """The current time."""
        return time.perf_counter()

    def seconds(self, mark: float) -> float:
        """Seconds from the clock's start to the mark."""
        return mark - self._start_s


@dataclass(slots=True, eq=False)
class Span:
    """Work of one thread; `start` and `end` are marks of its stream's clock."""

    stream: str
    what: str
    layer: int
    phase: str
    start: Any = None
    end: Any = None


class SpanRecorder:
    """Collects spans from all threads. A thread has one span at a time: an inner span interrupts the outer one.

    The stream "host" is timed by the processor's clock, all others by `clock`.
    """

    def __init__(self, clock: Clock) -> None:
        self._device = clock
        self._host = clock if isinstance(clock, HostClock) else HostClock()
        self._ended: list[Span] = []
        self._threads = threading.local()

    @contextmanager
    def recorded(self, span: Span) -> Iterator[None]:
        """A context that records its block, in the thread and on the CUDA stream that enter it."""
        stack = self._stack()
        with self.interruption():
            self.begin(span)
            stack.append(span)
            try:
                yield
            finally:
                stack.pop()
                self.end(span)

    @contextmanager
    def interruption(self) -> Iterator[None]:
        """A context that leaves its block out of the span around it."""
        stack = self._stack()
        if stack:
            self.end(stack[-1])
        try:
            yield
        finally:
            if stack:
                self.begin(stack[-1])

    def begin(self, span: Span) -> None:
        """Mark the start of a span."""
        span.start = self._clock_of(span).mark()

    def end(self, span: Span) -> None:
        """Mark the end of a span and store it; it may begin again."""
        self._ended.append(replace(span, end=self._clock_of(span).mark()))

    def taken(self) -> Iterator[tuple[Span, float, float]]:
        """Each span stored since the last call, with its start and end in seconds; waits for the marks."""
        while self._ended:
            span = self._ended.pop()
            clock = self._clock_of(span)
            yield span, clock.seconds(span.start), clock.seconds(span.end)

    def _clock_of(self, span: Span) -> Clock:
        return self._host if span.stream == "host" else self._device

    def _stack(self) -> list[Span]:
        """The open spans of this thread, outermost first."""
        if not hasattr(self._threads, "stack"):
            self._threads.stack = []
        stack: list[Span] = self._threads.stack
        return stack
