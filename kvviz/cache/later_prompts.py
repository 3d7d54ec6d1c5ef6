"""The attention inputs of a later prompt, after a method has dropped tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ..clustering.merged import Merged
from ..offload.device_store import DeviceStore


def kept_inputs(store: DeviceStore, merged: Merged | None, group: int, new: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values [B, H, K, D] and an additive mask with which a prompt attends to the kept tokens.

    The merged tokens come first, the prompt's `new` tokens last. The mask is [B or 1, Q or 1, new, K] for `group` query
    heads per KV head; it contains the log degree of the merged tokens.
    """
    keys, values = store.keys, store.values
    used, lowest = keys.shape[2], torch.finfo(keys.dtype).min
    mask = torch.full((new, used), lowest, dtype=keys.dtype, device=keys.device).triu(used - new + 1)[None, None]
    pads = store.pads()
    if pads is not None:
        mask = mask.masked_fill(pads.repeat_interleave(group, dim=1)[:, :, None], lowest)
    if merged is None:
        return keys, values, mask
    bias = merged.degree.to(keys.dtype).log().clamp(min=lowest).repeat_interleave(group, dim=1)  # [B, Q, C]
    mask = torch.cat([bias[:, :, None].expand(-1, -1, new, -1), mask.expand(*bias.shape[:2], -1, -1)], dim=-1)
    return torch.cat([merged.keys.to(keys), keys], dim=2), torch.cat([merged.values.to(values), values], 2), mask
