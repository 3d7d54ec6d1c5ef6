"""Metadata of a method that the host keeps and the device fetches ahead of the step that reads it."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import torch
from torch import Tensor

from ..trace.timeline import span, waiting
from .background import Pending, begin
from .growing import GrowingTensor, with_spare
from .layer_store import LayerStore

TAIL_TOKENS = 64  # newest tokens that stay on the device, and leave it together


class PrefetchedTensor:
    """A tensor that grows by tokens, kept in host memory; the device fetches a copy ahead of each use.

    Source: PQCache (arXiv 2407.12820), section 3.3: while a layer is at work, the next layer's codes are fetched.
    `start` begins the copy (`background.begin`), `result` waits for it, `release` gives it up. The newest tokens are on
    the device alone until there are 64 of them, so that a step sends nothing back. Host memory is pinned where that
    is a GPU.

    `tensor` [..., L, W] is on the device; tokens are its last dimension but one. `store`, that of the layer whose
    metadata it is, counts the bytes.
    """

    def __init__(self, tensor: Tensor, store: LayerStore) -> None:
        self._device, self._store = tensor.device, store
        none = tensor[..., :0, :]
        # zeros: a copy takes the spare room along
        allocate = partial(torch.zeros, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        self._host = GrowingTensor(none, -2, allocate=allocate)
        self._write(tensor)
        self._tail = GrowingTensor(none, -2)
        self._tail.reserve(TAIL_TOKENS)
        self._copying: Pending[Tensor] | Future[Tensor] | None = None
        self._copy: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens in all."""
        return self._host.used + self._tail.used

    @property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the tokens that each tier keeps; a copy that has come ahead is not counted."""
        tiers = {"device": self._tail.tensor, "host": self._host.tensor}
        return {tier: tokens.numel() * tokens.element_size() for tier, tokens in tiers.items()}

    def append(self, new: Tensor) -> None:
        """Put the next tokens [..., n, W] behind the others, also in a copy on the device."""
        for some in new.split(TAIL_TOKENS, dim=-2):
            count = some.shape[-2]
            if self._tail.used + count > TAIL_TOKENS:
                if self._copying is not None:
                    self.result()  # the copy on its way lacks what is written now
                self._write(self._tail.tensor)
                self._tail.used = 0
            start = self.length
            self._tail.append(some)
            if self._copy is not None and self._copy.shape[-2] >= self.length:
                self._copy[..., start : self.length, :] = some
            else:
                self._copy = None

    def start(self) -> None:
        """Begin to copy what the host keeps to the device, unless that has begun."""
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
        """Give up the copy on the device."""
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
        """Copy tokens [..., n, W] behind those in host memory; a copy on the device has room for the tail."""
        end = self._host.used + tokens.shape[-2]
        if end + TAIL_TOKENS > self._host.capacity:
            self._host.reserve(with_spare(end, 2 * TAIL_TOKENS))
        self._host.append(tokens)
