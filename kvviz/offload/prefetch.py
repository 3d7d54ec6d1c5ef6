"""Metadata of a method that is kept outside the device and comes there ahead of the step that reads it."""

from __future__ import annotations

from concurrent.futures import Future

import torch
from torch import Tensor

from ..trace.timeline import span, waiting
from .background import Pending, begin
from .layer_store import LayerStore

TAIL_TOKENS = 64  # newest tokens that stay on the device, and leave it together


class PrefetchedTensor:
    """A tensor that grows by tokens, kept in host memory; a copy comes to the device ahead of each use.

    Source: PQCache (arXiv 2407.12820), section 3.3: while a layer is at work, the next layer's codes are fetched.
    `start` begins the copy (`transfer.begin`), `result` waits for it, `release` gives it up. The newest tokens are on
    the device alone until there are 64 of them, so that a step sends nothing back. Host memory is pinned where that
    is a GPU.

    `tensor` [..., L, W] is on the device; tokens are its last dimension but one. `store`, that of the layer whose
    metadata it is, counts the bytes.
    """

    def __init__(self, tensor: Tensor, store: LayerStore) -> None:
        self._device, self._store = tensor.device, store
        self._outside = 0  # tokens in host memory
        self._host = self._with_room(tensor, tensor.shape[-2])
        self._write(tensor)
        self._tail = tensor.new_empty((*tensor.shape[:-2], TAIL_TOKENS, tensor.shape[-1]))
        self._tail_length = 0
        self._copying: Pending[Tensor] | Future[Tensor] | None = None
        self._copy: Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens in all."""
        return self._outside + self._tail_length

    @property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the tokens that each tier keeps; a copy that has come ahead is not counted."""
        token = self._host[..., :1, :].numel() * self._host.element_size()
        return {"device": self._tail_length * token, "host": self._outside * token}

    def append(self, new: Tensor) -> None:
        """Put the next tokens [..., n, W] behind the others, also in a copy on the device."""
        for some in new.split(TAIL_TOKENS, dim=-2):
            count = some.shape[-2]
            if self._tail_length + count > TAIL_TOKENS:
                if self._copying is not None:
                    self.result()  # the copy on its way lacks what is written now
                self._write(self._tail[..., : self._tail_length, :])
                self._tail_length = 0
            start = self.length
            self._tail[..., self._tail_length : self._tail_length + count, :] = some
            self._tail_length += count
            if self._copy is not None and self._copy.shape[-2] >= self.length:
                self._copy[..., start : self.length, :] = some
            else:
                self._copy = None

    def start(self) -> None:
        """Begin to copy what is outside to the device, unless that has begun."""
        if self._copying is not None or self._copy is not None:
            return
        host, device = self._host, self._device
        count = host.numel() * host.element_size()
        recorded = span(self._store.timeline, "transfer", "prefetch")
        self._copying = begin(lambda: host.to(device, non_blocking=True, copy=True), (self._tail,), count, recorded)
        self._store.prefetched_bytes += count

    def result(self) -> Tensor:
        """All tokens [..., L, W] on the device, until `release`; waits for the copy."""
        if self._copy is None:
            self.start()
            self._copy = self._arrived()
            self._copy[..., self._outside : self.length, :] = self._tail[..., : self._tail_length, :]
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
        """Copy tokens [..., n, W] behind those in host memory."""
        end = self._outside + tokens.shape[-2]
        if end + TAIL_TOKENS > self._host.shape[-2]:
            wider = self._with_room(self._host, end)
            wider[..., : self._outside, :] = self._host[..., : self._outside, :]
            self._host = wider
        self._host[..., self._outside : end, :] = tokens
        self._outside = end

    def _with_room(self, like: Tensor, length: int) -> Tensor:
        """Host memory for `length` tokens and some more; a copy on the device has room for the tail."""
        room = length + max(2 * TAIL_TOKENS, length // 8)
        shape = (*like.shape[:-2], room, like.shape[-1])
        # zeros: a copy takes the spare room along
        return torch.zeros(shape, dtype=like.dtype, pin_memory=self._device.type == "cuda")
