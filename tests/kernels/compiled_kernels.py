"""Compiles fused kernels for NVIDIA GPUs; this needs no GPU, but TRITON_INTERPRET must be unset.

    python -m tests.kernels.compiled_kernels

Triton's interpreter runs kernels as Python and accepts code that its compiler does not. Prints one JSON object: for
each case the bytes of shared memory, or the compiler's error.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from typing import Any

CAPABILITY = 90  # H100 and H200
INTEGERS, SCALARS = "*i64", {"i32", "i64", "fp32"}
Case = tuple[str, str, dict[str, Any]]  # module, kernel, and per argument its type or the value of a constant


def main() -> None:
    """Compile all cases."""
    results: dict[str, int | str] = {}
    for number, (module, kernel, arguments) in enumerate(cases()):
        name = f"{number} {module} {kernel}"
        try:
            results[name] = compiled(getattr(importlib.import_module(f"kvviz_kernels.{module}"), kernel), arguments)
        except Exception as error:  # the test shows the compiler's error
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))


def compiled(kernel: Any, arguments: dict[str, Any]) -> int:
    """Bytes of shared memory of the kernel for these argument types, all aligned to 16 bytes, and these constants."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {"num_warps": arguments.get("num_warps", 4)}
    used = {name: arguments[name] for name in kernel.arg_names}
    types = {name: kind for name, kind in used.items() if isinstance(kind, str) and (kind in SCALARS or kind[0] == "*")}
    constants = {name: value for name, value in used.items() if name not in types}
    index_of = kernel.arg_names.index
    if "constexprs" in inspect.signature(ASTSource.__init__).parameters:  # Triton 3.3 and newer
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        source_arguments: dict[str, Any] = {
            "constexprs": {(index_of(name),): value for name, value in constants.items()},
            "attrs": {(index_of(name),): [["tt.divisibility", 16]] for name, kind in types.items() if kind[0] in "*i"},
        }
    else:
        signature = {name: types[name] for name in kernel.arg_names if name in types}
        source_arguments = {"constants": constants}
    source = ASTSource(fn=kernel, signature=signature, **source_arguments)
    return int(triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options).metadata.shared)


def cases() -> Iterator[Case]:
    """All fused kernels in the forms that are used."""
    yield from attention()
    yield from kmeans()
    yield from matching()
    yield from inverted_file()
    yield from selection()


def attention() -> Iterator[Case]:
    """Attention of one step for one query head or a group, with and without tl.dot, and merging of parts."""
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
    # query heads per row, tl.dot or not, slots per block
    single, group, small_blocks = (1, False, 64), (4, True, 64), (4, False, 16)
    for kind, half, forms in (("bf16", True, (single, group, small_blocks)), ("fp32", False, (group, small_blocks))):
        types = dict.fromkeys(("queries", "keys", "values", "bias", "output"), f"*{kind}")
        types |= {"indices": INTEGERS, "lse": "*fp32", "scale": "fp32", "softcap": "fp32"}
        types |= dict.fromkeys(sizes, "i32")
        for heads, dot, block in forms:
            yield "attention.fused", "_attend_kernel", {
                **types, "key_element": 1, "value_element": 1, "ROWS": 8, "ROWS_OF_HEAD": 1, "GROUP": heads, "D": 96,
                "HAS_BIAS": dot, "HAS_SOFTCAP": dot, "DOT": dot, "HALF": half, "BLOCK_G": 16 if dot else heads,
                "BLOCK_S": block, "BLOCK_D": 128,
            }  # fmt: skip
    stacked = {"parts": "*fp32", "part_lses": "*fp32", "output": "*bf16", "lse": "*fp32", "count": "i32", "rows": "i32"}
    yield "attention.fused_merge", "_merge_stacked_kernel", {**stacked, "D": 96, "BLOCK_N": 4, "BLOCK_D": 128}
    listed = {f"part{part}": "*bf16" for part in range(4)} | {f"lse{part}": "*fp32" for part in range(4)}
    for count in (1, 4):
        merge = {**listed, "output": "*bf16", "lse": "*fp32", "COUNT": count, "D": 96, "BLOCK_D": 128}
        yield "attention.fused_merge", "_merge_listed_kernel", merge


def kmeans() -> Iterator[Case]:
    """Assignment of keys of each dtype, and the sums of clusters."""
    types = dict.fromkeys(("length", "blocks", "padded_clusters", "part_stride", "n_clusters"), "i32")
    types |= dict.fromkeys(("labels", "places", "bounds", "first_pieces", "owners"), INTEGERS)
    types |= dict.fromkeys(("bias", "partial", "sums"), "*fp32")
    for keys, weights, parts in (("*bf16", "*bf16", 3), ("*fp16", "*fp32", 2), ("*fp32", "*fp32", 2)):
        yield "kmeans.fused", "_assign_kernel", {
            **types, "keys": keys, "weights": weights, "BLOCK_L": 64, "BLOCK_C": 16, "BLOCK_D": 64, "D": 60,
            "PARTS": parts, "SPLIT_KEYS": keys == "*fp32",
        }  # fmt: skip
    pieces = {**types, "keys": "*bf16", "D": 60, "PIECE": 64, "BLOCK_L": 16, "BLOCK_D": 64}
    yield "kmeans.fused", "_sum_pieces_kernel", pieces
    yield "kmeans.fused", "_sum_clusters_kernel", {**types, "D": 60, "BLOCK_P": 8, "BLOCK_D": 64}


def matching() -> Iterator[Case]:
    """The links within chunks."""
    yield "matching.fused", "_match_kernel", {
        "keys": "*bf16", "partners": INTEGERS, "similarities": "*fp32", "row_stride": "i64", "token_stride": "i32",
        "length": "i32", "size": "i32", "links": "i32", "element_stride": 1, "blocks": 1, "BLOCK_A": 64, "BLOCK_B": 64,
        "D": 128, "BLOCK_D": 128,
    }  # fmt: skip


def inverted_file() -> Iterator[Case]:
    """Building lists of keys, and the union of lists."""
    lists = {
        "centroids": "*bf16", "keys": "*bf16", "last": INTEGERS, "lse": "*fp32", "scale": "fp32", "softcap": "fp32",
        "n_centroids": "i32", "key_row": "i64", "key_token": "i32", "key_element": 1, "CAUSAL": True,
        "HAS_SOFTCAP": True, "BLOCK_Q": 64, "BLOCK_K": 64, "D": 128, "BLOCK_D": 128,
    }  # fmt: skip
    yield "inverted_file.fused", "_normalise_kernel", {**lists, "queries": "i32", "length": "i32"}
    yield "inverted_file.fused", "_weigh_kernel", {
        **lists, "weights": "*fp32", "first": "i32", "some": "i32", "start": "i32", "places": "i32", "ROWS_OF_HEAD": 1,
        "GROUP": 4, "REDUCTION": "mean",
    }  # fmt: skip
    best = {"weights": "*fp32", "best": "*fp32", "slots": "*i32", "places": "i32", "count": "i32", "BLOCK": 2048}
    yield "inverted_file.fused", "_select_kernel", best
    union = {
        "bitmap": "*i32", "before": "*i32", "first": INTEGERS, "n": "i32", "words": "i32", "length": "i32",
        "width": "i32",
    }  # fmt: skip
    yield "inverted_file.fused_union", "_mark_kernel", {**union, "entries": "*i32", "BLOCK": 1024}
    compact = {**union, "tokens": INTEGERS, "counts": INTEGERS, "BLOCK": 512}
    yield "inverted_file.fused_union", "_compact_kernel", compact
    yield "inverted_file.fused_union", "_find_first_kernel", {**union, "entries": "*i32", "BLOCK": 1024}


def selection() -> Iterator[Case]:
    """Selection of clusters, pages and tokens, and the scores of codes."""
    take = {
        "queries": "*bf16", "centroids": "*fp32", "scores": "*fp32", "sizes": INTEGERS, "offsets": INTEGERS,
        "order": INTEGERS, "indices": INTEGERS, "ranks": "*i32", "count": "i32", "length": "i32", "slots": "i32",
        "ROWS": 8, "HEADS": 8, "GROUP": 4, "D": 128, "BLOCK_D": 8, "BLOCK_S": 1024,
        "SEARCH_STEPS": 12, "num_warps": 8,
    }  # fmt: skip
    # Large blocks of clusters take seconds to compile; their shared memory is checked once.
    for reduction, has_scores, details, block in (
        ("mean", False, True, 2048),
        ("max", False, False, 256),
        ("each", True, False, 256),
    ):
        forms = {"REDUCE": reduction, "HAS_SCORES": has_scores, "DETAILS": details, "BLOCK_C": block}
        yield "selection.fused", "_take_kernel", {**take, **forms}
    pages = {
        "queries": "*bf16", "bounds": "*fp32", "output": "*fp32", "pages": "i32", "bound_batch": "i64",
        "bound_head": "i64", "bound_channel": "i32", "HEADS": 8, "GROUP": 4, "D": 128, "BLOCK_P": 128, "BLOCK_D": 32,
        "BLOCK_G": 16,
    }  # fmt: skip
    for reduction in ("mean", "max", "each"):
        yield "selection.fused", "_pages_kernel", {**pages, "REDUCE": reduction}
    best = {"scores": "*fp32", "output": INTEGERS, "length": "i32", "count": "i32", "BLOCK": 8192, "PASSES": 3}
    yield "selection.fused_best", "_best_kernel", {**best, "num_warps": 16}
    codes = {
        "tables": "*fp32", "codes": "*u8", "peaks": "*fp32", "totals": "*fp32", "output": "*fp32", "length": "i32",
        "splits": "i32", "scale": "fp32", "softcap": "fp32", "code_batch": "i64", "code_head": "i64",
        "code_token": "i32", "HEADS": 8, "GROUP": 4, "PARTS": 2, "C": 64, "HAS_SOFTCAP": True, "HAS_SCALE": True,
        "BLOCK": 512, "BLOCKS": 4, "BLOCK_SPLITS": 64,
    }  # fmt: skip
    yield "selection.fused_quantized", "_totals_kernel", codes
    for reduction in ("mean", "max", "each"):
        yield "selection.fused_quantized", "_weigh_kernel", {**codes, "REDUCE": reduction}


if __name__ == "__main__":
    main()
