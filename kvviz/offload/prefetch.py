"""A method's metadata in host memory, which the device prefetches before the step that reads it."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import torch
from torch import Tensor

from ..trace.timeline import span, waiting
from .background import Pending, begin
from .growing import GrowingTensor, with_spare
from .layer_store import LayerStore

TAIL_TOKENS = 64  # newest tokens that stay on the device, and are offloaded together


class PrefetchedTensor:
    """A tensor in host memory that grows by tokens; the device prefetches a copy before each use.

    Source: PQCache (arXiv 2407.12820), section 3.3: while a layer computes, the next layer's codes are fetched. `start`
    begins the copy (`background.begin`), `result` waits for it, `release` frees it. The newest tokens are only on the
    device until there are 64 of them, so that a step sends nothing back. Host memory is pinned if the device is a GPU.

    `tensor` [..., L, W] is on the device; tokens are its second-last dimension. `store`, the store of the layer that
    the metadata belongs to, counts the bytes.
    """

    def __init__(self, tensor: Tensor, store: LayerStore) -> None:
        self._device, self._store = tensor.device, store
        empty = tensor[..., :0, :]
        # zeros, because a copy includes the spare room
        allocate = partial(torch.zeros, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._host = GrowingTensor(empty, -2, allocate=allocate)
        self._write(tensor)
        self._tail = GrowingTensor(empty, -2)
        self._tail.reserve(TAIL_TOKENS)
        self._copying: Pending[Tensor] | Future[Tensor] | None = None
        self._copy: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens in all."""
        return self._host.used + self._tail.used

    @property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the tokens on each tier; a prefetched copy is not counted."""
        tiers = {"device": self._tail.tensor, "host": self._host.tensor}
        return {tier: tokens.numel() * tokens.element_size() for tier, tokens in tiers.items()}

    def append(self, new: Tensor) -> None:
        """Append the next tokens [..., n, W], also to a copy on the device."""
        for chunk in new.split(TAIL_TOKENS, dim=-2):
            count = chunk.shape[-2]
            if self._tail.used + count > TAIL_TOKENS:
                if self._copying is not None:
                    self.result()  # the copy under way lacks the tokens written now
                self._write(self._tail.tensor)
                self._tail.used = 0
            start = self.length
            self._tail.append(chunk)
            if self._copy is not None and self._copy.shape[-2] >= self.length:
                self._copy[..., start : self.length, :] = chunk
            else:
                self._copy = None

    def start(self) -> None:
        """Begin to copy the tokens in host memory to the device, unless the copy has begun."""
        if self._copying is not None or self._copy is not None:
            return
        host, device = self._host.buffer, self._device
        count = host.numel() * host.element_size()
        recorded = span(self._store.timeline, "transfer", "prefetch")
        inputs = (self._tail.buffer,)
        self._copying = begin(lambda: host.to(device, non_blocking=True, copy=True), inputs, count, recorded)
        self._store.prefetched_bytes += count

    def result(self) -> Tensor:
        """All tokens [..., L, W] on the device, until `release`; waits for the copy."""
        if self._copy is None:
            self.start()
            self._copy = self._arrived()
            self._copy[..., self._host.used : self.length, :] = self._tail.tensor
        return self._copy[..., : self.length, :]

    def release(self) -> None:
        """Free the copy on the device."""
        if self._copying is not None:
            self._arrived()
        self._copy = None

    def _arrived(self) -> Tensor:
        assert self._copying is not None
        with waiting(self._store.timeline):
            copy = self._copying.result()
        if copy.is_cuda:  # made on the transfer stream, read and freed on this one
            copy.record_stream(torch.cuda.current_stream(copy.device))
        self._copying = None
        return copy

    def _write(self, tokens: Tensor) -> None:
        """Append tokens [..., n, W] in host memory, with room for the tail in a copy on the device."""
        end = self._host.used + tokens.shape[-2]
        if end + TAIL_TOKENS > self._host.capacity:
            self._host.reserve(with_spare(end, 2 * TAIL_TOKENS))
        self._host.append(tokens)
