"""The union of lists, compiled for the CPU."""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..compiling import Array, array_of, kernel, run

PASSES = 4  # over as many places as entries, about: marking, searching, writing and padding


def ivf_union(entries: Tensor, length: int, *, width: int | None, places: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct positions; see `kvviz_kernels.ivf_union`."""
    batch, n = entries.shape[:-1], entries.shape[-1]
    rows = array_of(entries).reshape(batch.numel(), n)
    slots = max(1, min(n, length)) if width is None else width
    tokens, counts = np.empty((len(rows), slots), np.int64), np.empty(len(rows), np.int64)
    first = np.zeros((len(rows), slots if places else 0), np.int64)
    run(_unite, PASSES * rows.size, rows, length, tokens, first, counts)
    widest = max([1, *counts.tolist()]) if width is None else width
    tokens_of, first_of = torch.from_numpy(tokens[:, :widest]), torch.from_numpy(first[:, :widest])
    counts_of = torch.from_numpy(counts).view(batch)
    return tokens_of.reshape(*batch, tokens_of.shape[-1]), first_of.reshape(*batch, first_of.shape[-1]), counts_of


def _union(rows: Array, length: int, tokens: Array, first: Array, counts: Array) -> None:
    """One task per row: the place of each position's first entry in a table, then the positions in order."""
    for row in prange(len(rows)):
        places = np.full(length, -1, np.int32)
        for place in range(rows.shape[1] - 1, -1, -1):
            token = rows[row, place]
            if 0 <= token < length:
                places[token] = place
        slot = 0
        for token in range(length):
            if places[token] >= 0:
                if slot < tokens.shape[1]:
                    tokens[row, slot] = token
                    if first.shape[1]:
                        first[row, slot] = places[token]
                slot += 1
        counts[row] = slot
        for pad in range(slot, tokens.shape[1]):
            tokens[row, pad] = -1


_unite = kernel(_union)
