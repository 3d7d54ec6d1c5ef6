"""LayerStore: the interface of all stores for one layer's keys and values, on any tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..trace.timeline import LayerTimeline

ALL_ROWS = slice(None)


class Fetched(NamedTuple):
    """Where to read the tokens of a selection: buffers [B, H, N, D] with any strides, and slots [B, R, S] in them."""

    keys: Tensor
    values: Tensor
    slots: Tensor


def row_places(positions: Tensor, batch: int, heads: int, capacity: int, rows: slice = ALL_ROWS) -> Tensor:
    """Indices of `positions` [B, R, S] of these batch rows in a list with `capacity` rows per head, int64.

    The list holds the sequences one after another, and in each sequence its heads; R is a multiple of `heads`.
    """
    sequence = torch.arange(batch, device=positions.device)[rows, None, None]
    selection_head = torch.arange(positions.shape[1], device=positions.device)[:, None]
    return positions + (sequence * heads + selection_head // (positions.shape[1] // heads)) * capacity


def rows_of(buffer: Tensor, places: Tensor) -> Tensor:
    """Rows [..., D] of a contiguous buffer [B, H, N, D] at `places` [...] in the list of all its rows.

    index_select of whole rows takes 10 µs, a gather along all channels 870 µs (3 x 640 rows of 64, EPYC).
    """
    return buffer.view(-1, buffer.shape[-1]).index_select(0, places.flatten()).view(*places.shape, buffer.shape[-1])


class LayerStore(ABC):
    """The keys and values of one layer, on any tiers; `KVStore.layer` makes one.

    It knows nothing of methods or attention: a `LayerCache` owns one and decodes over it, and a `SelectiveLayer` shows
    that LayerCache to transformers. `length` counts all tokens ever stored, `used` those that are still there.

    `moved_bytes` counts the bytes that steps move between tiers: the keys and values fetched (without the positions
    that name them), and all that `to_host` and `to_device` copy. Offloading itself is not counted. `filled_bytes` is
    the part that no step had needed yet (whole blocks for a cache), `prefetched_bytes` the metadata that a method's
    state fetches in addition. `lookups` counts the
    different tokens that each look-up sought among the copies on the device, `misses` those without a copy.
    `group_lookups` counts the clusters, pages or blocks of the selections that name them, `group_misses` those with a
    missing token. `newest` is the key and value [B, H, 1, D] of the last token if it was stored alone. `complete` is
    False once tokens were dropped. `step_tokens` is the number of tokens to which a KV head may attend in a step, if
    that was not known when the store was made. `timeline`, if set, records when transfers and compute ran.
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
    step_tokens: int | None = None
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
        """Whether all tokens ever stored are still there."""
        return True

    @property
    def exact(self) -> bool:
        """Whether tokens come back bit for bit as they were."""
        return True

    @abstractmethod
    def reserve(self, keys: Tensor, values: Tensor, capacity: int) -> None:
        """Make room for `capacity` tokens shaped like keys and values [B, H, n, D]; stored tokens stay."""

    def expect(self, tokens: int) -> None:
        """Announce how many tokens will be stored in all, so that a tier that is too small fails at once."""
        return

    @abstractmethod
    def append(self, keys: Tensor, values: Tensor) -> None:
        """Store the next tokens' keys and values, each [B, H, n, D]."""

    @abstractmethod
    def last(self, count: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, count, D] of the last tokens stored."""

    def compress(self, starts: Sequence[int] | None = None) -> None:
        """Store tokens in fewer bits, if the store does so: after a prompt is indexed, and after each step.

        `starts` [B] counts each row's left padding.
        """
        return

    def offload_chunk(self) -> None:
        """Offload a chunk of a prompt before the next one is stored."""
        return

    def offload(self, newest: int, pinned: Tensor | None = None, copied: int = 0) -> None:
        """Offload the tokens that are not always attended to, after a prompt and again during generation.

        The `newest` tokens and those at the positions `pinned` [B, s] stay on the device; the oldest `copied` of the
        newest are offloaded too, so that the host can attend to them in the next step.
        """
        return

    def wait(self) -> None:
        """Wait until all transfers have finished; raises their errors."""
        return

    @abstractmethod
    def fetch(self, indices: Tensor, *, padded: bool = True) -> Fetched:
        """The tokens at `indices` [B, R, S], -1 pads, on the model's device; valid until the next call.

        `padded=False` promises that there are no pads and that all tokens are stored, which saves time.
        """

    def missing(self, indices: Tensor) -> Tensor | None:
        """Whether each token at `indices` [B, R, S] would be fetched from another tier now; None if none ever is."""
        return None

    def count_groups(self, indices: Tensor, groups: Tensor) -> None:
        """Count the groups [B, R, S], -1 for none, of the tokens at `indices`; call it before they are fetched."""
        missing = self.missing(indices)
        if missing is None:
            return
        count = int(groups.amax()) + 1
        named = torch.zeros((*groups.shape[:2], count + 1), dtype=torch.bool, device=groups.device)
        incomplete = torch.zeros_like(named)
        named.scatter_(-1, torch.where((groups < 0) | (indices < 0), count, groups).long(), True)
        incomplete.scatter_(-1, torch.where((groups < 0) | ~missing, count, groups).long(), True)
        self.group_lookups += int(named[..., :count].sum())
        self.group_misses += int(incomplete[..., :count].sum())

    def parts(self, indices: Tensor) -> list[slice] | None:
        """Slices of slots that are to be fetched one at a time; None if all slots fit at once."""
        return None

    def on_host(self, indices: Tensor, rows: slice = ALL_ROWS) -> Fetched | None:
        """The tokens at `indices` [B, R, S], -1 pads, in host memory; None unless a lower tier has them all."""
        return None

    def to_host(self, tensor: Tensor) -> Tensor:
        """The tensor in host memory; its bytes count as moved if the store offloads tokens."""
        return self._crossing(tensor, torch.device("cpu"))

    def to_device(self, tensor: Tensor, device: torch.device) -> Tensor:
        """A tensor of the host on this device; its bytes count as moved if the store offloads tokens."""
        return self._crossing(tensor, device)

    def _crossing(self, tensor: Tensor, device: torch.device) -> Tensor:
        # Counted on the CPU too, where host and device share their memory: counts do not depend on the machine.
        if self.offloads:
            self.moved_bytes += tensor.numel() * tensor.element_size()
        return tensor.to(device)

    @abstractmethod
    def read(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """Keys and values [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads a token or 0."""

    def read_keys(self, positions: Tensor, rows: slice = ALL_ROWS) -> Tensor:
        """Keys [B, R, S, D] of these batch rows at `positions` [B, R, S]; a -1 pad reads a token or 0."""
        return self.read(positions, rows)[0]

    def keys_at(self, positions: Tensor, rows: slice = ALL_ROWS) -> tuple[Tensor, Tensor]:
        """A buffer of keys [B, H or R, N, D], and the places in it of the tokens at `positions` [B, R, S], -1 for pads.

        For kernels that read keys where they are. A store without such a buffer gathers the keys.
        """
        places = torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)
        return self.read_keys(positions, rows), places.masked_fill(positions < 0, -1)

    @abstractmethod
    def kept_bytes(self) -> dict[str, int]:
        """Bytes of the memory for keys and values on each tier, spare room included."""

    def read_bytes(self, indices: Tensor) -> int:
        """Bytes of the keys and values at `indices` [B, R, S], -1 pads, as they are stored."""
        return int((indices >= 0).sum()) * self.token_bytes

    @property
    @abstractmethod
    def batch(self) -> int:
        """Number of sequences in the batch, once tokens are stored."""

    @property
    @abstractmethod
    def key_bytes(self) -> int:
        """Bytes of one token's keys in all KV heads of one sequence."""

    @property
    @abstractmethod
    def token_bytes(self) -> int:
        """Bytes of one token's key and value in one KV head."""

    @abstractmethod
    def renewed(self) -> LayerStore:
        """An empty store with the same settings."""

    def clone(self) -> LayerStore:
        """An independent copy. Raises InvalidInputError if tokens are offloaded."""
        raise InvalidInputError("copy of a cache", "one whose tokens are offloaded", 'a cache with store="device"')
