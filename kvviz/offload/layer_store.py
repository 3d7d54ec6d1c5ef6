"""What every store of one layer's keys and values offers, whatever tier keeps them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..trace.timeline import LayerTimeline

ALL_ROWS = slice(None)


class Fetched(NamedTuple):
    """Where the tokens of a selection can be read: buffers [B, H, N, D] of any strides, and slots [B, R, S] in them."""

    keys: Tensor
    values: Tensor
    slots: Tensor


def row_places(positions: Tensor, batch: int, heads: int, capacity: int, rows: slice = ALL_ROWS) -> Tensor:
    """Where `positions` [B, R, S] of these batch rows lie in a list of rows, `capacity` of them a head, int64.

    The list holds the heads of a sequence one after the other, and the sequences likewise; R is a multiple of `heads`.
    """
    of_batch = torch.arange(batch, device=positions.device)[rows, None, None]
    of_row = torch.arange(positions.shape[1], device=positions.device)[:, None]
    return positions + (of_batch * heads + of_row // (positions.shape[1] // heads)) * capacity


class LayerStore(ABC):
    """Keys and values of one layer, on whatever tiers; `KVStore.layer` makes one.

    It knows no method and no attention: a `LayerCache` owns one and decodes over it, and a `SelectiveLayer` shows that
    LayerCache to transformers. `length` counts every token ever stored, `used` those that are still there.

    `moved_bytes` is what was fetched from another tier, `filled_bytes` the part of it that no step had asked for yet
    (whole blocks for a cache), and `prefetched_bytes` what a method's state fetched beside keys and values. `lookups`
    counts the different tokens that each look-up sought among the copies on the device, `misses` those that were not
    there; `group_lookups` the clusters, pages or blocks of the selections that name them, `group_misses` those of which
    a token was not there. `newest` is the key and value [B, H, 1, D] where one token came last. `complete` is False
    once tokens were dropped. `timeline`, if set, is told when transfers and compute ran.
    """

    offloads: ClassVar[bool] = False  # whether tokens are kept on a lower tier

    length: int = 0
    used: int = 0
    moved_bytes: int = 0
    filled_bytes: int = 0
    prefetched_bytes: int = 0
    lookups: int = 0
    misses: int = 0
    group_lookups: int = 0
    group_misses: int = 0
    newest: tuple[Tensor, Tensor] | None = None
    timeline: LayerTimeline | None = None

    @property
    @abstractmethod
    def keys(self) -> Tensor:
        """All keys still stored, [B, H, used, D], on the model's device."""

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """All values still stored, [B, H, used, D], on the model's device."""

    @property
    def complete(self) -> bool:
        """Whether every token ever stored is still there."""
        return True

    @abstractmethod
    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens shaped like keys and values [B, H, n, D]; what is stored stays."""

    def expect(self, tokens: int) -> None:
        """Announce how many tokens will be stored in all, so that a tier too small for them says so at once."""
        return

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""

    @abstractmethod
    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, count, D] of the last tokens stored."""

    def offload_chunk(self) -> None:
        """Offload a chunk of a prompt, before the next one comes."""
        return

    def offload(self, newest: int, pinned: Tensor | None = None) -> None:
        """Offload what is not always attended to, after a prompt and again while generating.

        The `newest` tokens and those at the positions `pinned` [B, s] stay on the device.
        """
        return

    def wait(self) -> None:
        """Wait until everything is where it is kept; raises what went wrong on the way."""
        return

    @abstractmethod
    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The tokens at `indices` [B, R, S], -1 pads, on the model's device; valid until the next call.

        `padded=False` promises that there are no pads and that every token is stored, which saves time.
        """

    def missing(self, indices: Tensor) -> Tensor | None:
        """Which of the tokens at `indices` [B, R, S] would be fetched from another tier now; None: never any."""
        return None

    def count_groups(self, indices: Tensor, groups: Tensor) -> None:
        """Count the groups [B, R, S], -1 for none, that the tokens at `indices` come from, before they are fetched."""
        missing = self.missing(indices)
        if missing is None:
            return
        every = int(groups.amax()) + 1
        named = torch.zeros((*groups.shape[:2], every + 1), dtype=torch.bool, device=groups.device)
        incomplete = torch.zeros_like(named)
        named.scatter_(-1, torch.where((groups < 0) | (indices < 0), every, groups).long(), True)
        incomplete.scatter_(-1, torch.where((groups < 0) | ~missing, every, groups).long(), True)
        self.group_lookups += int(named[..., :every].sum())
        self.group_misses += int(incomplete[..., :every].sum())

    def parts(self, indices: Tensor) -> list[slice] | None:
        """Runs of slots that can be fetched one at a time; None where all fit together."""
        return None

    def on_host(self, indices: Tensor, rows: slice = ALL_ROWS) -> Fetched | None:
        """The tokens at `indices` [B, R, S], -1 pads, in host memory; None unless a lower tier has them all."""
        return None

    @abstractmethod
    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads another token."""

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads some other token."""
        return self.read(positions, rows)[0]

    @abstractmethod
    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory that holds keys and values on each tier, spare room included."""

    @property
    @abstractmethod
    def batch(self) -> int:
        """Sequences of the batch, once tokens were stored."""

    @property
    @abstractmethod
    def token_bytes(self) -> int:
        """Bytes of one token's key and value, of one KV head."""

    @abstractmethod
    def renewed(self) -> LayerStore:
        """An empty store like this one."""

    def clone(self) -> LayerStore:
        """An independent copy; raises InvalidInputError where tokens are offloaded."""
        raise InvalidInputError("copy of a cache", "one whose tokens are offloaded", 'a cache with store="device"')
