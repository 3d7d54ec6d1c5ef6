"""Helpers for the tests of all kernels: both forms on all devices, odd lengths, tolerances."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported

LENGTHS = (1, 63, 100, 1000)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
_NUMBA = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed (extra: cpu)")
_NO_TRITON = importlib.util.find_spec("triton") is None
_TRITON = pytest.mark.skipif(_NO_TRITON, reason="Triton is not installed (extra: kernels)")
_INTERPRETER = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles for the GPU here; its interpreter is for others"
)
_IMPLS = [
    pytest.param("naive", "cpu", id="naive"),
    pytest.param("fused", "cpu", marks=[_TRITON, _INTERPRETER], id="fused"),
    pytest.param("naive", "cuda", marks=pytest.mark.gpu, id="naive-cuda"),
    pytest.param("fused", "cuda", marks=[pytest.mark.gpu, _TRITON], id="fused-cuda"),
]
_COMPILED = pytest.param("compiled", "cpu", marks=_NUMBA, id="compiled")
each_impl = pytest.mark.parametrize(("impl", "device"), _IMPLS)
each_form = pytest.mark.parametrize(("impl", "device"), [*_IMPLS, _COMPILED])  # of kernels that are compiled as well
each_on_cpu = pytest.mark.parametrize("impl", ["naive", pytest.param("compiled", marks=_NUMBA)])
each_fused = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=[_TRITON, _INTERPRETER], id="fused"),
        pytest.param("cuda", marks=[pytest.mark.gpu, _TRITON], id="fused-cuda"),
    ],
)

each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def normal(*shape: int, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """Normal random numbers, the same on all devices."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)
