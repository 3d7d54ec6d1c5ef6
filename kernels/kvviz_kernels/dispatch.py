"""Dispatch of a kernel to a form: plain torch ("naive"), Numba on a CPU ("compiled") or Triton on a GPU ("fused")."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Impl = Literal["auto", "naive", "compiled", "fused"]
Form = Literal["naive", "compiled", "fused"]
_logger = logging.getLogger(__package__)


def use_fused(kernel: str, impl: str, tensor: Tensor) -> bool:
    """Whether `kernel`, which has no compiled form, uses its fused form for this tensor; raises as `form` does."""
    if impl == "compiled":
        raise ValueError(f"{kernel}: got impl='compiled', which it does not have; wanted 'auto', 'naive' or 'fused'")
    return form(kernel, impl, tensor) == "fused"


def form(kernel: str, impl: str, tensor: Tensor, *others: Tensor, dense: bool = False) -> Form:
    """The form of `kernel` for this tensor; the compiled form depends on the others, those that it reads.

    "auto" is fused for a CUDA tensor if Triton is installed, compiled if Numba is installed and the others are float32
    or integers on the CPU, and naive otherwise. `dense`: the compiled form also wants stride 1 in their last dimension.
    "auto" is never compiled while a TorchDispatchMode such as torch's FlopCounterMode watches, which does not see what
    compiled code does.

    Raises ValueError for an unknown `impl`, or for tensors that the compiled form does not take; ImportError for a form
    whose library is missing; RuntimeError for impl="fused" on a tensor that is not on a GPU, unless Triton's
    interpreter is on.
    """
    if impl == "naive":
        return "naive"
    if impl == "auto":
        chosen: Form = "naive"
        if tensor.is_cuda and has_triton():
            chosen = "fused"
        elif others and has_numba() and _compiles(others, dense) and not _watched():
            chosen = "compiled"
        _log_once(kernel, chosen, tensor.device.type)
        return chosen
    if impl == "compiled":
        _check_compiled(kernel, others, dense)
        return "compiled"
    if impl != "fused":
        raise ValueError(f"{kernel}: got impl={impl!r}; wanted 'auto', 'naive', 'compiled' or 'fused'")
    if not has_triton():
        wanted = 'it installed: pip install "kvviz[kernels]"'
        raise ImportError(f"{kernel}: got impl='fused' without Triton; wanted {wanted}")
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(f"{kernel}: got impl='fused' for a tensor on {tensor.device}; wanted one on an NVIDIA GPU")
    return "fused"


def _compiles(tensors: tuple[Tensor, ...], dense: bool) -> bool:
    for tensor in tensors:  # a generator would take twice as long, at every kernel of every layer
        if not tensor.is_cpu or (tensor.dtype != torch.float32 and tensor.is_floating_point()):
            return False
        if dense and tensor.stride(-1) != 1:
            return False
    return True


def _watched() -> bool:
    return bool(torch._C._len_torch_dispatch_stack())  # torch has no public name for it


def _check_compiled(kernel: str, tensors: tuple[Tensor, ...], dense: bool) -> None:
    if not has_numba():
        wanted = 'it installed: pip install "kvviz[cpu]"'
        raise ImportError(f"{kernel}: got impl='compiled' without Numba; wanted {wanted}")
    if not _compiles(tensors, dense):
        got = ", ".join(f"{tensor.dtype} on {tensor.device}, strides {tensor.stride()}" for tensor in tensors)
        wanted = f"float32 or integers on the CPU{', stride 1 in the last dimension' if dense else ''}"
        raise ValueError(f"{kernel}: got impl='compiled' for {got}; wanted {wanted}")


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def has_numba() -> bool:
    """Whether Numba is installed."""
    return importlib.util.find_spec("numba") is not None


@cache
def _log_once(kernel: str, chosen: str, device: str) -> None:
    _logger.info("%s: %s on %s", kernel, chosen, device)


def is_forked() -> bool:
    """Whether this process was forked since this module was loaded: torch's threads did not come along."""
    return _forked


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
