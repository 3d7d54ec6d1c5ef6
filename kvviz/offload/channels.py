"""Keys kept a second time, channel by channel, so that a few channels of every token can be read alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .growing import SPARE_TOKENS, GrowingTensor


@dataclass(init=False, eq=False, repr=False)
class ChannelCache(GrowingTensor):
    """Some or all channels [B, H, C, L] of the keys so far, each channel's values next to one another."""

    buffer: Tensor  # a field: what a method keeps is counted by the fields of dataclasses, here with the spare room

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
        """Every channel, a view [B, H, C, L]."""
        return self.tensor

    def pick(self, chosen: Tensor) -> Tensor:
        """Those channels of every token, [B, R, r, L], that `chosen` [B, R, r] names, R a multiple of H."""
        batch, heads, channels, _ = self.buffer.shape
        rows = chosen.shape[1] // heads
        starts = torch.arange(0, batch * heads * channels, channels, device=chosen.device)  # of each head
        where = (starts.view(batch, heads).repeat_interleave(rows, dim=1)[..., None] + chosen).flatten()
        picked = self.buffer.flatten(0, 2)[:, : self.used].index_select(0, where)
        return picked.view(*chosen.shape, self.used)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored tokens, without the spare room."""
        return self.channels.numel() * self.channels.element_size()
