"""Keys kept a second time, channel by channel, so that a few channels of every token can be read alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .growing import SPARE_TOKENS


@dataclass(eq=False)
class ChannelCache:
    """Some or all channels of the keys so far, each channel's values next to one another.

    `buffer` [B, H, C, capacity] is valid up to `length` tokens; the room behind them lets a decode step write one
    token and not copy all.
    """

    buffer: Tensor
    length: int = 0

    @classmethod
    def of(cls, keys: Tensor) -> ChannelCache:
        """A cache of keys [B, H, L, C]."""
        batch, heads, length, channels = keys.shape
        cache = cls(keys.new_empty((batch, heads, channels, length + _spare(length))))
        cache.append(keys)
        return cache

    def append(self, keys: Tensor) -> None:
        """Add the next tokens' keys [B, H, n, C]."""
        end = self.length + keys.shape[2]
        if end > self.buffer.shape[-1]:
            wider = self.buffer.new_empty((*self.buffer.shape[:3], end + _spare(end)))
            wider[..., : self.length] = self.buffer[..., : self.length]
            self.buffer = wider
        self.buffer[..., self.length : end] = keys.transpose(-1, -2)
        self.length = end

    @property
    def channels(self) -> Tensor:
        """Every channel, a view [B, H, C, L]."""
        return self.buffer[..., : self.length]

    def pick(self, chosen: Tensor) -> Tensor:
        """Those channels of every token, [B, R, r, L], that `chosen` [B, R, r] names, R a multiple of H."""
        batch, heads, channels, _ = self.buffer.shape
        rows = chosen.shape[1] // heads
        starts = torch.arange(0, batch * heads * channels, channels, device=chosen.device)  # of each head
        where = (starts.view(batch, heads).repeat_interleave(rows, dim=1)[..., None] + chosen).flatten()
        picked = self.buffer.flatten(0, 2)[:, : self.length].index_select(0, where)
        return picked.view(*chosen.shape, self.length)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored tokens, without the spare room."""
        return self.buffer[..., : self.length].numel() * self.buffer.element_size()


def _spare(length: int) -> int:
    return max(SPARE_TOKENS, length // 8)
