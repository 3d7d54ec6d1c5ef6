"""Compiles fused kernels for NVIDIA GPUs, which needs none: python -m tests.compiled_kernels, TRITON_INTERPRET unset.

Triton's interpreter runs kernels as Python and so accepts what its compiler does not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import triton
from kvviz_kernels.attention import fused, fused_merge
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = (90,)  # H100 and H200
WHOLE, GROUP, FEW = (1, False, 64), (4, True, 64), (4, False, 16)  # query heads a row, tl.dot or not, slots a block
Case = tuple[Any, dict[str, str], dict[str, Any]]


def main() -> None:
    """Compile every case for every target; the first error ends it."""
    for kernel, types, constants in cases():
        for capability in TARGETS:
            compiled(kernel, types, constants, capability)
            print(kernel.__name__, constants, capability)


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any], capability: int) -> Any:
    """The kernel for arguments of these Triton types, all aligned to 16 bytes, and these constants."""
    names = kernel.arg_names
    aligned = [name for name, kind in types.items() if kind[0] in "*i"]
    if "constexprs" in inspect.signature(ASTSource.__init__).parameters:  # Triton 3.3 and newer
        signature = {name: types.get(name, "constexpr") for name in names}
        options: dict[str, Any] = {
            "constexprs": {(names.index(name),): value for name, value in constants.items()},
            "attrs": {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        }
    else:
        signature = {name: types[name] for name in names if name in types}
        options = {"constants": constants}
    return triton.compile(
        ASTSource(fn=kernel, signature=signature, **options), target=GPUTarget("cuda", capability, 32)
    )


def cases() -> Iterator[Case]:
    """The kernels in the forms that decoding takes."""
    sizes = (
        "slots",
        "slots_of_split",
        "key_batch",
        "key_head",
        "key_token",
        "value_batch",
        "value_head",
        "value_token",
    )
    for kind, half, forms in (("bf16", True, (WHOLE, GROUP, FEW)), ("fp32", False, (GROUP, FEW))):
        tensors = dict.fromkeys(("queries", "keys", "values", "bias", "output"), f"*{kind}")
        types = {**tensors, "indices": "*i64", "lse": "*fp32", "scale": "fp32", "softcap": "fp32"}
        types |= dict.fromkeys(sizes, "i32")
        for group, dot, block in forms:
            constants = {
                "key_element": 1, "value_element": 1, "ROWS": 8, "ROWS_OF_HEAD": 1, "GROUP": group, "D": 96,
                "HAS_BIAS": dot, "HAS_SOFTCAP": dot, "DOT": dot, "HALF": half, "BLOCK_G": 16 if dot else group,
                "BLOCK_S": block, "BLOCK_D": 128,
            }  # fmt: skip
            yield fused._attend_kernel, types, constants
    stacked = {"parts": "*fp32", "part_lses": "*fp32", "output": "*bf16", "lse": "*fp32", "count": "i32", "rows": "i32"}
    yield fused_merge._merge_stacked_kernel, stacked, {"D": 96, "BLOCK_N": 4, "BLOCK_D": 128}
    listed = {f"part{part}": "*bf16" for part in range(4)} | {f"lse{part}": "*fp32" for part in range(4)}
    for count in (1, 4):
        types = {**listed, "output": "*bf16", "lse": "*fp32"}
        yield fused_merge._merge_listed_kernel, types, {"COUNT": count, "D": 96, "BLOCK_D": 128}


if __name__ == "__main__":
    main()
