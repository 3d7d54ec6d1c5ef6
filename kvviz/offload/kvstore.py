"""Where a cache keeps keys and values: on the device, in host memory or on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import psutil  # how much memory is free differs by operating system
import torch
from torch import Tensor

from ..errors import InvalidInputError
from .arena import StepArena
from .base import LayerStore
from .offloaded import OffloadedStore
from .outer import HostRows
from .space import Space
from .store import DeviceStore

Tier = Literal["device", "host", "disk"]
TIERS: tuple[Tier, ...] = ("device", "host", "disk")


@dataclass(eq=False)
class KVStore:
    """Where a `SelectiveCache` keeps keys and values. `SelectiveCache(..., store="host")` is `store=KVStore("host")`.

    `tier`: "device", or the outer tier to which all but sinks and newest tokens go once a prompt is prefilled.
    `recent_steps`: copies of the tokens that were attended in the last so many steps stay on the device (ClusterKV's
    R); 0 fetches everything anew. `arena_tokens`: how many copies a KV head may have on the device at once; by default
    what a step attends, once for the step and once for each of `recent_steps`. It is never exceeded: a step that needs
    more is attended in parts. `limit_bytes`: what the outer tier may take; by default all that is free.

    Layers that attend everything by the method's choice (the first two, often) stay on the device: they would move
    all they hold at every step.

    Raises InvalidInputError for a value out of range.
    """

    tier: Tier = "host"
    recent_steps: int = 1
    arena_tokens: int | None = None
    limit_bytes: int | None = None
    _space: Space = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise InvalidInputError("KVStore: tier", repr(self.tier), f"one of {TIERS}")
        for name, least in (("recent_steps", 0), ("arena_tokens", 1), ("limit_bytes", 1)):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise InvalidInputError(f"KVStore: {name}", repr(value), f"an int >= {least}")
        self._space = Space(self.tier, self.limit_bytes, lambda: int(psutil.virtual_memory().available))

    def layer(self, budget: Callable[[int], int], *, stays: bool = False) -> LayerStore:
        """An empty store for one layer.

        `budget` says how many tokens a KV head may attend for a prompt of so many; `stays` keeps them on the device.
        """
        if self.tier == "device" or stays:
            return DeviceStore()
        return OffloadedStore(self._rows, partial(self._arena, budget))

    def _rows(self, heads: int, capacity: int, width: int, like: Tensor) -> HostRows:
        return HostRows(heads, capacity, width, like.dtype, self._space, pinned=like.is_cuda)

    def _arena(self, budget: Callable[[int], int], heads: int, prompt: int, device: torch.device) -> StepArena:
        """The arena of a layer of `heads` heads in all, for a prompt of so many tokens."""
        tokens = self.arena_tokens
        if tokens is None:
            tokens = min((1 + self.recent_steps) * budget(prompt), prompt)
        return StepArena(heads * tokens, self.recent_steps, device)


def resolve_store(store: str | KVStore) -> KVStore:
    """The store of this name, or the one given; raises InvalidInputError for another."""
    if isinstance(store, KVStore):
        return store
    if store not in TIERS:
        raise InvalidInputError("SelectiveCache: store", repr(store), f"one of {TIERS}, or a KVStore")
    return KVStore(store)
