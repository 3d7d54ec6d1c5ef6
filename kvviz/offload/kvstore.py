"""KVStore: where a cache keeps keys and values, on the device, in host memory or on disk."""

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

    `tier`: "device", or the lower tier to which all tokens but the sinks and the newest are offloaded after the
    prefill. `cache`: which copies stay on the device after a step: `StepCache(recent_steps)`, the tokens of the last
    steps, or `BlockCache(...)`, whole blocks. The default is the method's `device_cache`: blocks for PQCache, as in its
    paper, and the tokens of one step for all other methods. `arena_tokens`: how many tokens, fetched one by one, each
    KV head may have on the device; the default is the number of tokens that a step attends to, times 1 +
    `recent_steps`. It is never exceeded: a step that needs more attends in parts. A block cache has its
    `capacity_tokens` in addition. `limit_bytes`: the most that the lower tier may use; by default all free space.
    `folder`: where tier "disk" makes its private folder, which is removed at the end; by default the system's temporary
    folder. Some systems keep that in memory; choose a folder on a fast disk there.

    Layers with dense selection by the method's choice (often the first two) stay on the device: they would move all
    their tokens at each step. Raises InvalidInputError for a value out of range.
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
            raise InvalidInputError("KVStore: folder", repr(self.folder), 'an existing folder, with tier="disk"')
        self._private = PrivateFolder(None if self.folder is None else Path(self.folder).resolve())
        free = partial(free_disk, self._private) if self.tier == "disk" else free_memory
        self._space = Space(self.tier, self.limit_bytes, free)

    def layer(
        self, budget: Callable[[int], int], *, stays: bool = False, cache: StepCache | BlockCache = DEFAULT_CACHE
    ) -> LayerStore:
        """An empty store for one layer.

        `budget` gives the number of tokens that a KV head may attend to, from the prompt's length. `stays` keeps all
        tokens on the device. `cache` is the method's device cache, used if this store names none.
        """
        if self.tier == "device" or stays:
            return DeviceStore()
        cache = self.cache or cache

        def make_arena(heads: int, prompt: int, device: torch.device, step_tokens: int | None) -> Arena:
            tokens = budget(prompt) if step_tokens is None else step_tokens
            return cache.arena(heads, tokens, prompt, self.arena_tokens, device)

        return OffloadedStore(self._rows, make_arena)

    def _rows(self, heads: int, capacity: int, width: int, like: Tensor) -> HostRows:
        if self.tier == "disk":
            return DiskRows(heads, capacity, width, like.dtype, self._space, folder=self._private)
        return HostRows(heads, capacity, width, like.dtype, self._space, pinned=like.is_cuda)


def resolve_store(store: str | KVStore) -> KVStore:
    """The KVStore of this tier, or the KVStore itself. Raises InvalidInputError for an unknown tier."""
    if isinstance(store, KVStore):
        return store
    if store not in TIERS:
        raise InvalidInputError("SelectiveCache: store", repr(store), f"one of {TIERS}, or a KVStore")
    return KVStore(store)
