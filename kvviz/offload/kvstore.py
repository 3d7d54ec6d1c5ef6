"""Where a cache keeps keys and values: on the device, in host memory or on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .arena import Arena, StepCache, check_at_least
from .block_cache import BlockCache
from .device_store import DeviceStore
from .disk import DiskRows, free_disk
from .folders import PrivateFolder
from .host import HostRows
from .layer_store import LayerStore
from .offloaded_store import OffloadedStore
from .space import Space, free_memory

Tier = Literal["device", "host", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "disk")
DEFAULT_CACHE = StepCache()


@dataclass(eq=False)
class KVStore:
    """Where a `SelectiveCache` keeps keys and values. `SelectiveCache(..., store="host")` is `store=KVStore("host")`.

    `tier`: "device", or the lower tier that all but sinks and newest tokens are offloaded to after a prompt's prefill.
    `cache`: which copies stay on the device after a step: `StepCache(recent_steps)`, those of the last steps, or
    `BlockCache(...)`, whole blocks. By default the method says so in its `device_cache`: PQCache keeps blocks, as its
    paper does, every other method the tokens of one step. `arena_tokens`: how many tokens a KV head may have on the
    device that were fetched one by one; by default what a step attends, once for the step and once for each of
    `recent_steps`. It is never exceeded: a step that needs more is attended in parts. A block cache has its
    `capacity_tokens` on top. `limit_bytes`: what the lower tier may take; by default all that is free.
    `folder`: where tier "disk" makes its private folder, removed at the end; by default the system's temporary folder,
    which some systems keep in memory: name a folder on a fast disk.

    Layers that attend everything by the method's choice (the first two, often) stay on the device: they would move
    all they hold at every step.

    Raises InvalidInputError for a value out of range.
    """

    tier: Tier = "host"
    cache: StepCache | BlockCache | None = None
    arena_tokens: int | None = None
    limit_bytes: int | None = None
    folder: str | Path | None = None
    _space: Space = field(init=False, repr=False)
    _private: PrivateFolder = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise InvalidInputError("KVStore: tier", repr(self.tier), f"one of {TIERS}")
        if not isinstance(self.cache, StepCache | BlockCache | None):
            raise InvalidInputError("KVStore: cache", repr(self.cache), "a StepCache, a BlockCache or None")
        check_at_least("KVStore", self, arena_tokens=1, limit_bytes=1)
        if self.folder is not None and (self.tier != "disk" or not Path(self.folder).is_dir()):
            raise InvalidInputError("KVStore: folder", repr(self.folder), 'with tier="disk", a folder that exists')
        self._private = PrivateFolder(None if self.folder is None else Path(self.folder).resolve())
        free = partial(free_disk, self._private) if self.tier == "disk" else free_memory
        self._space = Space(self.tier, self.limit_bytes, free)

    def layer(
        self, budget: Callable[[int], int], *, stays: bool = False, cache: StepCache | BlockCache = DEFAULT_CACHE
    ) -> LayerStore:
        """An empty store for one layer.

        `budget` says how many tokens a KV head may attend for a prompt of so many; `stays` keeps them on the device;
        `cache` is what the method suits, where this store has none of its own.
        """
        if self.tier == "device" or stays:
            return DeviceStore()
        cache = self.cache or cache

        def make_arena(heads: int, prompt: int, device: torch.device) -> Arena:
            return cache.arena(heads, budget(prompt), prompt, self.arena_tokens, device)

        return OffloadedStore(self._rows, make_arena)

    def _rows(self, heads: int, capacity: int, width: int, like: Tensor) -> HostRows:
        if self.tier == "disk":
            return DiskRows(heads, capacity, width, like.dtype, self._space, folder=self._private)
        return HostRows(heads, capacity, width, like.dtype, self._space, pinned=like.is_cuda)


def resolve_store(store: str | KVStore) -> KVStore:
    """The store of this name, or the one given; raises InvalidInputError for another."""
    if isinstance(store, KVStore):
        return store
    if store not in TIERS:
        raise InvalidInputError("SelectiveCache: store", repr(store), f"one of {TIERS}, or a KVStore")
    return KVStore(store)
