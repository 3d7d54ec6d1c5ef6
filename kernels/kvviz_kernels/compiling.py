"""What the compiled kernels share: how Numba compiles them, the threads that they use, flat buffers, the exponential.

Loops over `prange` run on as many threads as torch uses, if that pays. On Linux both take them from GNU OpenMP, so that
they wait for work in one pool. How work is cut into parts never depends on the number of threads, and neither do
results, except for the last bit of a sum: the two forms may be vectorized differently. The form on one thread gives the
same bits in every process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dispatch import is_forked

Array = NDArray[Any]

LOWEST = np.float32(-1e30)  # stands for -inf, with which fast mathematics may not compute
PART = 128  # slots that one part of a row has at least
MOST_PARTS = 8
GRAIN = 32768  # operations from which threads pay, as in torch

_MOST_THREADS: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]  # set when Numba reads its settings
_running = threading.Lock()  # Numba's portable threading layer takes one caller at a time
_threads = threading.local()  # what this thread asked Numba for


class Kernel(NamedTuple):
    """A kernel in two forms, each compiled at its first call for the types of its arguments, and kept on disk."""

    serial: Callable[..., Any]
    parallel: Callable[..., Any]


def kernel(function: Callable[..., Any]) -> Kernel:
    """The function as a kernel; its loops over `prange` are parallel in one of the forms."""
    return Kernel(_compiled(function, parallel=False), _compiled(function, parallel=True))


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a part of kernels: put into each before it is compiled.

    Linked, it would be vectorized in one way where it was compiled and in another where it was loaded from disk.
    """
    dispatcher: Callable[..., Any] = numba.njit(function, fastmath=True, nogil=True, inline="always")
    return dispatcher


def _compiled(function: Callable[..., Any], *, parallel: bool) -> Callable[..., Any]:
    if parallel:  # Numba keeps compiled code by the function's name, so that one name would give one form for both
        function = FunctionType(function.__code__, function.__globals__, function.__name__)
        function.__qualname__ += "_on_threads"
    # With fast mathematics, sums and maxima are vectorized. It assumes that no number is NaN or infinite.
    dispatcher: Callable[..., Any] = numba.njit(function, parallel=parallel, fastmath=True, nogil=True, cache=True)
    return dispatcher


def run(called: Kernel, work: int, *arguments: object) -> None:
    """Call a kernel that does so many operations: on torch's number of threads if these pay, otherwise on one.

    A thread that waits for others spins, for 8 ms where another process has its core: little work never waits. A forked
    process has one thread: Numba would end it at the first use of GNU OpenMP.
    """
    count = torch.get_num_threads()
    if count == 1 or work < GRAIN or is_forked():
        called.serial(*arguments)
        return
    with _running:
        if getattr(_threads, "count", 0) != count:
            numba.set_num_threads(min(count, _MOST_THREADS))
            _threads.count = count
        called.parallel(*arguments)


def flat(buffer: Tensor) -> tuple[Array, tuple[int, ...]]:
    """The memory of a tensor [B, H, N, D] as one array, without a copy, and its strides.

    Compiled loops over D are vectorized only if the array is dense.
    """
    (batch, heads, length, width), strides = buffer.shape, buffer.stride()
    of_batch, of_head, of_token, _ = strides
    end = (batch - 1) * of_batch + (heads - 1) * of_head + (length - 1) * of_token + width if buffer.numel() else 0
    return array_of(buffer.as_strided((end,), (1,))), strides


def array_of(tensor: Tensor) -> Array:
    """A CPU tensor's memory as a dense array; a copy only if the tensor is not dense."""
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).contiguous().numpy()
    return array


def parts_of(slots: int) -> int:
    """The number of parts into which a row of so many slots is cut."""
    return min(-(-slots // PART), MOST_PARTS)


def _exponentials(row: Array, peak: np.float32, scales: Array) -> np.float32:
    """Replace each value of a row with exp(value - peak), and return their sum; no value is above the peak.

    2^n · exp(r) with r within ±ln(2)/2 and the polynomial of Cephes' expf: a loop that is vectorized, where one with
    the C library's exp takes ten times as long. The relative error is about 1e-7 · (1 + |value - peak|), as for float32
    values rounded once more; below -88, 0. `scales` is int32 room of the row's length.
    """
    for i in range(len(row)):
        x = max(row[i] - peak, np.float32(-88.0))
        n = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
        whole = np.float32(n)
        x -= whole * np.float32(0.69314718056)
        y = np.float32(1.9875691500e-4)
        y = y * x + np.float32(1.3981999507e-3)
        y = y * x + np.float32(8.3334519073e-3)
        y = y * x + np.float32(4.1665795894e-2)
        y = y * x + np.float32(1.6666665459e-1)
        y = y * x + np.float32(5.0000001201e-1)
        row[i] = y * x * x + x + np.float32(1.0)
        scales[i] = max(n + np.int32(127), np.int32(0)) << np.int32(23)
    powers = scales.view(np.float32)
    total = np.float32(0.0)
    for i in range(len(row)):
        row[i] *= powers[i]
        total += row[i]
    return total


def _peak(row: Array) -> np.float32:
    peak = row[0]
    for i in range(1, len(row)):
        peak = max(peak, row[i])
    return np.float32(peak)


def _join(target: Array, row: Array, factor: np.float32, first: bool, add: bool) -> None:
    """Reduce `row` times `factor` into `target`: the first row of a group is copied, others are added or maximized."""
    if first:
        for i in range(len(row)):
            target[i] = row[i] * factor
    elif add:
        for i in range(len(row)):
            target[i] += row[i] * factor
    else:
        for i in range(len(row)):
            target[i] = max(target[i], row[i] * factor)


exponentials = helper(_exponentials)
join = helper(_join)
peak_of = helper(_peak)
