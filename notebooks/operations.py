"""Counts of what torch code does: MACs (multiply-accumulate operations), and the largest tensors computed or copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

# These move numbers without computing: their cost is what they write, not what they could read.
MOVES = frozenset({
    "gather", "index", "index_select", "take", "embedding", "clone", "copy_", "_to_copy", "cat", "stack", "repeat",
    "repeat_interleave", "constant_pad_nd", "roll", "flip", "scatter", "scatter_", "index_put", "index_put_",
    "index_copy_", "slice_scatter", "select_scatter", "masked_select", "_unsafe_view", "empty_like", "new_empty",
    "new_empty_strided", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "fill_", "zero_",
    "lift_fresh",
})  # fmt: skip


class OperationCounter(TorchDispatchMode):
    """A context that counts torch's operations on floating-point numbers, but not those on integers.

    `macs`: MACs of all matrix products, by torch's formulas. `largest_operand`: elements of the largest tensor
    in an arithmetic operation, including broadcast elements, since each costs an operation. `largest_copy`: elements of
    the largest tensor written without arithmetic (gathered, copied, concatenated). `operand_of` and `copy_of` name the
    two operations. Views cost nothing. Code outside torch (NumPy, faiss) is not counted.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated in torch
        self.macs = 0
        self.largest_operand = 0
        self.operand_of = ""
        self.largest_copy = 0
        self.copy_of = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not func.is_view:
            self._count(func, args, kwargs, out)
        return out

    def _count(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        name = func.overloadpacket.__name__
        if name in MOVES:
            written = max(_sizes([args[0]] if name == "copy_" else [out]), default=0)
            if written > self.largest_copy:
                self.largest_copy, self.copy_of = written, name
            return
        read = max(_sizes([args, kwargs, out]), default=0)
        if read > self.largest_operand:
            self.largest_operand, self.operand_of = read, name
        formula = flop_registry.get(func.overloadpacket) or PRODUCTS.get(name)
        if formula is not None and read:
            self.macs += int(formula(*args, **kwargs, out_val=out)) // 2


def _matrix_vector(matrix: Tensor, *args: Any, **kwargs: Any) -> int:
    return 2 * matrix.numel()


def _add_matrix_vector(bias: Tensor, matrix: Tensor, *args: Any, **kwargs: Any) -> int:
    return 2 * matrix.numel()


# Products without a formula in torch's registry; like there, one MAC is two operations.
PRODUCTS: Mapping[str, Callable[..., int]] = {
    "mv": _matrix_vector,
    "dot": _matrix_vector,
    "vdot": _matrix_vector,
    "addmv": _add_matrix_vector,
}


def _sizes(value: object) -> Iterator[int]:
    """Number of elements of each floating-point tensor in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value.numel()
    elif isinstance(value, dict):
        yield from _sizes(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _sizes(item)


def counted(call: Callable[[], Any]) -> OperationCounter:
    """The counts of `call()`, run without gradients."""
    counter = OperationCounter()
    with torch.no_grad(), counter:
        call()
    return counter
