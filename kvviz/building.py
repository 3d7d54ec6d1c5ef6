"""Building a method's state beside the rest of the prefill: in a worker thread and, on CUDA, on a side stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import cache

import torch
from torch import Tensor

from .background import Worker
from .methods.base import State

_worker = Worker()


class Pending:
    """A state that is being built; `result` waits for it."""

    def __init__(self, build: Callable[[], State], inputs: tuple[Tensor, ...]) -> None:
        self._ready: torch.cuda.Event | None = None
        self._future: Future[State]
        device = inputs[0].device
        if device.type != "cuda":
            self._future = _worker.submit(build)
            return
        written, self._ready = torch.cuda.Event(), torch.cuda.Event()
        written.record(torch.cuda.current_stream(device))
        ready = self._ready
        self._future = _worker.submit(lambda: _on_side_stream(build, inputs, written, ready))

    def result(self) -> State:
        """The state, safe to read on the current stream; raises what building it raised."""
        state = self._future.result()
        if self._ready is not None:
            torch.cuda.current_stream().wait_event(self._ready)
        return state


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


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
