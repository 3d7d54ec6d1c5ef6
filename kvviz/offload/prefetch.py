"""A method's codes in host memory, which the device prefetches before the step that reads them."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import torch
from torch import Tensor

from ..trace.timeline import span, waiting
from .background import Pending, begin
from .growing import GrowingTensor, with_spare
from .layer_store import LayerStore
from .packing import CODES_PER_WORD, pack, unpack

TAIL_TOKENS = 64  # newest tokens that stay on the device, and are offloaded together


class PrefetchedTensor:
    """Codes in host memory, packed to their bits, that grow by tokens; the device prefetches a copy before each use.

    Source: PQCache (arXiv 2407.12820), section 3.3: while a layer computes, the next layer's codes are fetched. `start`
    begins the copy (`background.begin`), `result` waits for it, `release` frees it. The newest tokens are only on the
    device, one or two bytes per code, until there are 64 of them, so that a step sends nothing back. Host memory and
    transfers hold `bits` per code (section 4.1.3), in rows of 8 tokens. The copy is unpacked where it was made, on the
    transfer stream. Host memory is pinned if the device is a GPU.

    `codes` [..., L, m] are on the device, uint8 or, above 8 bits, uint16, each below 2^`bits`. `store`, the store of
    the layer that the codes belong to, counts the bytes.
    """

    def __init__(self, codes: Tensor, bits: int, store: LayerStore) -> None:
        self._device, self._bits, self._store = codes.device, bits, store
        # zeros, because a copy includes the spare room
        allocate = partial(torch.zeros, dtype=torch.uint8, pin_memory=codes.is_cuda)
        self._host = GrowingTensor(pack(codes[..., :0, :], bits), -2, allocate=allocate)  # rows of packed codes
        self._tail = GrowingTensor(codes[..., :0, :], -2)
        self._tail.reserve(TAIL_TOKENS)
        self._write(codes)
        self._copying: Pending[Tensor] | Future[Tensor] | None = None
        self._copy: Tensor | None = None

    @property
    def length(self) -> int:
        """Number of tokens in all."""
        return self._on_host + self._tail.used

    @property
    def _on_host(self) -> int:
        """Number of tokens in host memory."""
        return self._host.used * CODES_PER_WORD

    @property
    def stored_bytes(self) -> dict[str, int]:
        """Bytes of the codes on each tier; a prefetched copy is not counted."""
        tiers = {"device": self._tail.tensor, "host": self._host.tensor}
        return {tier: codes.numel() * codes.element_size() for tier, codes in tiers.items()}

    def append(self, new: Tensor) -> None:
        """Append the codes [..., n, m] of the next tokens, also to a copy on the device."""
        for chunk in new.split(TAIL_TOKENS - CODES_PER_WORD, dim=-2):  # fits beside what does not fill a row
            count = chunk.shape[-2]
            if self._tail.used + count > TAIL_TOKENS:
                if self._copying is not None:
                    self.result()  # the copy under way lacks the tokens written now
                tail = self._tail.tensor
                self._tail.used = 0
                self._write(tail)
            start = self.length
            self._tail.append(chunk)
            if self._copy is not None and self._copy.shape[-2] >= self.length:
                self._copy[..., start : self.length, :] = chunk
            else:
                self._copy = None

    def start(self) -> None:
        """Begin to copy the codes in host memory to the device, unless the copy has begun."""
        if self._copying is not None or self._copy is not None:
            return
        host, device, bits = self._host.buffer, self._device, self._bits
        count = host.numel() * host.element_size()
        recorded = span(self._store.timeline, "transfer", "prefetch")
        inputs = (self._tail.buffer,)

        def copy() -> Tensor:
            return unpack(host.to(device, non_blocking=True, copy=True), bits)

        self._copying = begin(copy, inputs, count, recorded)
        self._store.prefetched_bytes += count

    def result(self) -> Tensor:
        """The codes [..., L, m] of all tokens on the device, until `release`; waits for the copy."""
        if self._copy is None:
            self.start()
            self._copy = self._arrived()
            self._copy[..., self._on_host : self.length, :] = self._tail.tensor
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

    def _write(self, codes: Tensor) -> None:
        """Append codes [..., n, m] in host memory, except those that fill no row, which become the tail.

        Host memory has room for a full tail, and so has a copy on the device.
        """
        whole = codes.shape[-2] // CODES_PER_WORD * CODES_PER_WORD
        rows = self._host.used + whole // CODES_PER_WORD
        if rows + TAIL_TOKENS // CODES_PER_WORD > self._host.capacity:
            self._host.reserve(with_spare(rows, 2 * TAIL_TOKENS // CODES_PER_WORD))
        self._host.append(pack(codes[..., :whole, :], self._bits))
        self._tail.append(codes[..., whole:, :].clone())  # a clone, because it may be a view of the tail itself
