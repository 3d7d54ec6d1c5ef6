"""A second copy of the keys, channel by channel, so that a few channels of all tokens can be read alone."""

from __future__ import annotations

import torch
from torch import Tensor

from .growing import SPARE_TOKENS, GrowingTensor


class ChannelCache(GrowingTensor):
    """Some or all channels [B, H, C, L] of the keys so far; the values of one channel are adjacent in memory."""

    @classmethod
    def of(cls, keys: Tensor) -> ChannelCache:
        """A cache of keys [B, H, L, C]."""
        cache = cls(keys[:, :, :0].transpose(-1, -2), -1, least_spare=SPARE_TOKENS)
        cache.append(keys)
        return cache

    def append(self, new: Tensor) -> None:
        """Add the next tokens' keys [B, H, n, C]."""
        super().append(new.transpose(-1, -2))

    @property
    def channels(self) -> Tensor:
        """All channels, a view [B, H, C, L]."""
        return self.tensor

    def pick(self, chosen: Tensor) -> Tensor:
        """The channels `chosen` [B, R, r] of all tokens, [B, R, r, L], R a multiple of H."""
        batch, heads, channels, _ = self.buffer.shape
        rows = chosen.shape[1] // heads
        starts = torch.arange(0, batch * heads * channels, channels, device=chosen.device)  # of each head
        places = (starts.view(batch, heads).repeat_interleave(rows, dim=1)[..., None] + chosen).flatten()
        picked = self.buffer.flatten(0, 2)[:, : self.used].index_select(0, places)
        return picked.view(*chosen.shape, self.used)
