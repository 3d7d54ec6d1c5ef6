"""The common check of bytes: those that steps move between device and host, and those of a method's metadata."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...offload.growing import GrowingTensor
from ...offload.host import HostRows
from ...offload.kvstore import KVStore
from ...offload.layer_store import LayerStore
from ...offload.token_cache import TokenCache
from ..base import LayerContext, Method, State
from ..capabilities import HostMetadata
from .steps import CONTEXT, smallest

N_HEADS, N_KV_HEADS, PROMPT, STEPS = 6, 2, 600, 80  # generated tokens are offloaded too, 64 at a time
NO_METADATA = (
    LayerContext, TokenCache, LayerStore, type, types.FunctionType, types.ModuleType, type(None), int, float, str,
    bytes, torch.device, torch.dtype, np.generic,
)  # fmt: skip


def bytes_are_counted(method: type[Method]) -> None:
    """Moved, prefetched and filled bytes are those counted by hand, and metadata those of all tensors in the state.

    Methods whose tokens are never offloaded pass. A method that sends tensors to the host or back counts them by using
    `to_host` and `to_device` of its TokenCache.
    """
    chosen, counted = smallest(method), CountedKVStore()
    context = replace(CONTEXT, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS)
    if chosen.drops_tokens or chosen.is_dense(context.index):
        return
    queries, keys, values = random_tokens(PROMPT, seed=0)
    per_kv_head = context.selection_heads(chosen.group) // N_KV_HEADS
    store = counted.layer(lambda prompt: chosen.budget_tokens(prompt) * per_kv_head, cache=method.device_cache)
    store.append(keys, values)
    queries = queries if method.needs_queries else queries[:, :, :0]
    state = chosen.build(replace(context, cached=TokenCache(store)), queries, keys, values)
    store.offload(chosen.local_window(state), torch.arange(chosen.sinks)[None])
    filled = 0
    with Crossings() as crossings:
        for step in range(STEPS):
            state = _step(chosen, state, store, seed=1 + step)
            before = counted.loaded_bytes
            store.offload(chosen.local_window(state))
            store.wait()
            filled += counted.loaded_bytes - before
            assert_moves_are_counted(method.name, store, counted.loaded_bytes + crossings.bytes, filled)
            assert_metadata_is_counted(method.name, state)


def assert_moves_are_counted(name: str, store: LayerStore, moved: int, filled: int) -> None:
    """Raise AssertionError unless the store counts so many bytes as moved or prefetched, and as filled."""
    counted = store.moved_bytes + store.prefetched_bytes
    assert counted == moved, f"{name}: {counted:,} bytes counted as moved or prefetched, but {moved:,} were moved"
    assert store.filled_bytes == filled, f"{name}: {store.filled_bytes:,} bytes counted as filled, but {filled:,} were"


def assert_metadata_is_counted(name: str, state: State) -> None:
    """Raise AssertionError unless `metadata_bytes` is the sum over all tensors and arrays in the state.

    It may be more if the state holds objects of another library, such as an index of faiss.
    """
    sizes: dict[tuple[int, int], int] = {}
    all_searched = _search(state, sizes, set())
    held, counted = sum(sizes.values()), state.metadata_bytes()
    assert counted == held or (counted > held and not all_searched), (
        f"{name}: metadata_bytes is {counted:,}, but the state's tensors have {held:,} bytes"
    )


def random_tokens(count: int, *, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries [1, Q, n, D], keys and values [1, H, n, D] of `count` tokens."""
    generator = torch.Generator().manual_seed(seed)
    heads = (N_HEADS, N_KV_HEADS, N_KV_HEADS)
    queries, keys, values = (torch.randn(1, n, count, CONTEXT.head_dim, generator=generator) for n in heads)
    return queries, keys, values


class Crossings(TorchFunctionMode):
    """Counts the `bytes` of all tensors that this thread sends to a device by `Tensor.to` or `Tensor.cpu`.

    It also counts those that are there already: on a machine without an accelerator, host and device are one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        to_device = any(isinstance(option, torch.device | str) for option in (*args[1:], *options.values()))
        if func is Tensor.cpu or (func is Tensor.to and to_device):
            self.bytes += result.nbytes
        return result


@dataclass(eq=False)
class CountedKVStore(KVStore):
    """A KVStore in host memory that counts the bytes of all rows loaded to the device."""

    loaded_bytes: int = 0

    def _rows(self, heads: int, capacity: int, width: int, like: Tensor) -> HostRows:
        rows = CountedRows(heads, capacity, width, like.dtype, self._space, pinned=False)
        rows.counted = self
        return rows


class CountedRows(HostRows):
    """Rows whose loads are added to `counted.loaded_bytes`."""

    counted: CountedKVStore

    def load(self, places: Tensor, pool: Tensor, slots: Tensor, *, ascending: bool = False) -> None:
        """Copy the rows at `places` [n] into `pool` [N, W] at `slots` [n]."""
        super().load(places, pool, slots, ascending=ascending)
        self.counted.loaded_bytes += len(places) * self.rows[0].nbytes

    def grown(self, capacity: int) -> HostRows:
        """The same rows with room for more tokens."""
        wider = super().grown(capacity)
        assert isinstance(wider, CountedRows)
        wider.counted = self.counted
        return wider


def _step(method: Method, state: State, store: LayerStore, *, seed: int) -> State:
    """The state after a decode step that fetches all tokens of its selection to the device."""
    queries, keys, values = random_tokens(1, seed=seed)
    store.append(keys, values)
    if isinstance(state, HostMetadata):
        state.prefetch()
    state = method.extend(state, queries, keys, values)
    selection = method.select(state, queries[:, :, 0])
    for part in store.parts(selection.indices) or [slice(None)]:
        store.fetch(selection.indices[..., part], padded=selection.padded)
    return state


def _search(value: object, sizes: dict[tuple[int, int], int], visited: set[int]) -> bool:
    """Add the bytes of all tensors and arrays in `value` to `sizes`, by address and bytes, so that views count once.

    Spare room does not count. Returns whether all objects could be searched.
    """
    if id(value) in visited or isinstance(value, NO_METADATA):
        return True
    visited.add(id(value))
    if isinstance(value, GrowingTensor):
        value = value.tensor
    if isinstance(value, Tensor | np.ndarray):
        address = value.data_ptr() if isinstance(value, Tensor) else value.ctypes.data
        sizes[address, value.nbytes] = value.nbytes
        return True
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = list(value)
    elif hasattr(value, "__dict__"):
        parts = list(vars(value).values())
    else:
        return False
    return all([_search(part, sizes, visited) for part in parts])
