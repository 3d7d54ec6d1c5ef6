"""Which stored tokens are still needed after a method has dropped some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..methods.selection import positions, stack_positions
from ..offload.device_store import DeviceStore


class Kept(NamedTuple):
    """What the method keeps of a run of `batch` rows of the batch with `start` pads each.

    It has seen `length` tokens; `tokens` [B, H, K] are the positions that it keeps, None if all.
    """

    batch: int
    start: int
    length: int
    tokens: Tensor | None


def needed_positions(store: DeviceStore, rows: Sequence[Kept], heads: int) -> Tensor | None:
    """Positions [B, H, K] of the tokens to retain, -1 pads; None if the store holds no others.

    Tokens that the method has not seen yet come last, in the same slots of all heads.
    """
    if all(row.tokens is None for row in rows):
        return None
    parts = [
        positions(0, row.length, row.batch, heads, store.keys.device) if row.tokens is None else row.tokens
        for row in rows
    ]
    kept = stack_positions(parts, [row.start for row in rows])
    unseen = positions(rows[0].start + rows[0].length, store.length, *kept.shape[:2], kept.device)
    fewest = int((kept >= 0).sum(-1).min()) + unseen.shape[-1]
    return torch.cat([kept, unseen], dim=-1) if fewest < store.used else None
