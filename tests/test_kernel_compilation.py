"""Fused kernels compile for a GPU, found out without one: Triton's interpreter takes code that its compiler won't.

The compiler runs in a process of its own, since the interpreter is on in this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TILE = {"D": 128, "BLOCK_D": 128, "num_warps": 4}
MATCH = {
    "keys": "*bf16", "partners": "*i64", "similarities": "*fp32", "row_stride": "i64", "token_stride": "i32",
    "length": "i32", "size": "i32", "links": "i32", "element_stride": 1, "blocks": 1, "BLOCK_A": 64, "BLOCK_B": 64,
    **TILE,
}  # fmt: skip
LISTS = {
    "centroids": "*bf16", "keys": "*bf16", "last": "*i64", "lse": "*fp32", "scale": "fp32", "softcap": "fp32",
    "n_centroids": "i32", "key_row": "i64", "key_token": "i32", "key_element": 1, "CAUSAL": True, "HAS_SOFTCAP": True,
    "BLOCK_Q": 64, "BLOCK_K": 64, **TILE,
}  # fmt: skip
WEIGH = {
    **LISTS, "weights": "*fp32", "first": "i32", "some": "i32", "start": "i32", "places": "i32", "ROWS_OF_HEAD": 1,
    "GROUP": 4, "REDUCTION": "mean",
}  # fmt: skip
UNION = {"bitmap": "*i32", "before": "*i32", "first": "*i64", "n": "i32", "words": "i32", "width": "i32"}
# module, kernel, and of each argument the type, or the value of a constant
KERNELS = [
    ("matching.fused", "_match_kernel", MATCH),
    ("inverted_file.fused", "_normalise_kernel", {**LISTS, "queries": "i32", "length": "i32"}),
    ("inverted_file.fused", "_weigh_kernel", WEIGH),
    ("inverted_file.fused", "_select_kernel", {
        "weights": "*fp32", "best": "*fp32", "slots": "*i32", "places": "i32", "count": "i32", "BLOCK": 2048}),
    ("inverted_file.fused_union", "_mark_kernel", {
        "entries": "*i32", "bitmap": "*i32", "n": "i32", "words": "i32", "BLOCK": 1024}),
    ("inverted_file.fused_union", "_compact_kernel", {**UNION, "tokens": "*i64", "counts": "*i64", "BLOCK": 512}),
    ("inverted_file.fused_union", "_find_first_kernel", {**UNION, "entries": "*i32", "BLOCK": 1024}),
]  # fmt: skip
COMPILE = """
import importlib, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TYPES = {"i32", "i64", "fp32"}

def compile(module, name, options):
    kernel = getattr(importlib.import_module("kvviz_kernels." + module), name)
    warps = {"num_warps": options.pop("num_warps", 4)}
    typed = {name for name, own in options.items() if isinstance(own, str) and (own in TYPES or own[0] == "*")}
    signature = {name: options[name] if name in typed else "constexpr" for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): own for name, own in options.items() if name not in typed}
    built = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options=warps)
    return built.metadata.shared

found = {}
for module, name, options in json.loads(sys.argv[1]):
    try:
        found[name] = compile(module, name, options)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, int | str]:
    """Of each kernel the bytes of shared memory that it takes, or what the compiler said."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT / "kernels")
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(KERNELS)],
        env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    return dict(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (extra: kernels)")
@pytest.mark.parametrize("kernel", [kernel for _, kernel, _ in KERNELS])
def test_a_kernel_compiles_for_a_gpu(kernel, compiled):
    shared = compiled[kernel]
    assert isinstance(shared, int), shared
    assert shared < 99 * 1024, "the least that a GPU since the RTX 30 has"
