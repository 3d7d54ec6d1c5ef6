"""Copies between tiers that run beside the model's work, where that pays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from torch import Tensor

from .background import Pending

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Fewer bytes than this are copied at once on the CPU, where a worker thread costs more than it hides: with PQCache's
# codes of 4,000 tokens of SmolLM2 (30 layers, 27 kB each) a step took 83 ms with one and 74 ms without, at two OpenMP
# threads 111 ms and 65 ms (AMD EPYC, 2 cores, shared with others).
WORKER_BYTES = 8 << 20


class Underway(Protocol[T_co]):
    """A copy that has begun."""

    def result(self) -> T_co:
        """What the copy gave; waits for it and raises what went wrong."""


def begin(
    work: Callable[[], T], inputs: tuple[Tensor, ...], count: int, recorded: AbstractContextManager[None]
) -> Underway[T]:
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
