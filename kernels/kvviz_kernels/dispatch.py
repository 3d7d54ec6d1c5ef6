"""Dispatch of a kernel to its implementation: plain torch ("naive") or Triton ("fused")."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import Literal

from torch import Tensor

Impl = Literal["auto", "naive", "fused"]
_logger = logging.getLogger(__package__)


def use_fused(kernel: str, impl: str, tensor: Tensor) -> bool:
    """Whether `kernel` uses its fused form for this tensor.

    Raises ValueError for an unknown `impl`, ImportError for impl="fused" without Triton, and RuntimeError for
    impl="fused" on a tensor that is not on a GPU, unless Triton's interpreter is on.
    """
    if impl == "naive":
        return False
    if impl == "auto":
        fused = tensor.is_cuda and has_triton()
        _log_once(kernel, "fused" if fused else "naive", tensor.device.type)
        return fused
    if impl != "fused":
        raise ValueError(f"{kernel}: got impl={impl!r}; wanted 'auto', 'naive' or 'fused'")
    if not has_triton():
        wanted = 'it installed: pip install "kvviz[kernels]"'
        raise ImportError(f"{kernel}: got impl='fused' without Triton; wanted {wanted}")
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError(f"{kernel}: got impl='fused' for a tensor on {tensor.device}; wanted one on an NVIDIA GPU")
    return True


@cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def _log_once(kernel: str, impl: str, device: str) -> None:
    _logger.info("%s: %s on %s", kernel, impl, device)
