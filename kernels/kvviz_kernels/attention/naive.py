"""Attention over selected tokens in plain torch: gather the rows, then two small matrix products."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

NEGATIVE_INFINITY = float("-inf")


def gather_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    indices: Tensor,
    *,
    scale: float,
    bias: Tensor | None = None,
    softcap: float | None = None,
    padded: bool = True,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; see `kvviz_kernels.gather_attention`."""
    batch, heads, width = queries.shape
    rows, slots = indices.shape[1:]
    if slots == 0:
        return torch.zeros_like(queries), queries.new_full((batch, heads), NEGATIVE_INFINITY, dtype=torch.float32)
    positions = indices
    if padded:  # a pad reads one of the row's tokens, with weight 0: what else lies in the buffer may be NaN
        pads = indices < 0
        positions = torch.where(pads, indices.amax(-1, keepdim=True).clamp_(min=0), indices)
    places = _places(keys, positions)
    picked_keys = _pick(keys, positions, places)  # [B * R, S, D]
    if values.stride() != keys.stride():
        places = _places(values, positions)
    picked_values = _pick(values, positions, places)
    grouped = queries.reshape(batch * rows, heads // rows, width).float() * scale
    logits = torch.bmm(grouped, picked_keys.transpose(1, 2))  # [B * R, Q / R, S]
    if softcap is not None:
        logits.div_(softcap).tanh_().mul_(softcap)
    if bias is not None:
        logits += bias.reshape(batch * rows, 1, slots)
    if padded:
        logits.masked_fill_(pads.reshape(batch * rows, 1, slots), NEGATIVE_INFINITY)
    weights = logits.softmax(-1)
    peak = logits.amax(-1)
    lse = peak - weights.amax(-1).log_()  # the peak's weight is exp(peak - lse); 4 µs against 14 of torch.logsumexp
    output = torch.bmm(weights, picked_values)
    if padded or bias is not None:  # softmax over no tokens is NaN
        empty = peak == NEGATIVE_INFINITY
        output.masked_fill_(empty[..., None], 0.0)
        lse.masked_fill_(empty, NEGATIVE_INFINITY)
    return output.view(batch, heads, width).to(queries.dtype), lse.view(batch, heads)


def _pick(buffer: Tensor, positions: Tensor, places: Tensor | None) -> Tensor:
    """Rows of `buffer` [B, H, N, D] at `positions` [B, R, S], float32 [B * R, S, D]; a new tensor.

    index_select over the buffer seen as a list of rows: 25 µs for 3 x 512 rows of 64, against 190 µs of advanced
    indexing and 300 µs of gather (EPYC Zen 5, 2 threads).
    """
    batch, heads, capacity, width = buffer.shape
    rows, slots = positions.shape[1:]
    if places is not None:
        step_batch, step_head, step_token, _ = buffer.stride()
        last = ((batch - 1) * step_batch + (heads - 1) * step_head + (capacity - 1) * step_token) // width
        picked = buffer.as_strided((last + 1, width), (width, 1)).index_select(0, places)
    else:
        of_batch = torch.arange(batch, device=buffer.device)[:, None, None]
        of_head = torch.arange(rows, device=buffer.device)[:, None] // (rows // heads)
        picked = buffer[of_batch, of_head, positions]
    return picked.view(batch * rows, slots, width).float()


def _places(buffer: Tensor, positions: Tensor) -> Tensor | None:
    """Where `positions` lie in `buffer` seen as a list of rows, int64 [B * R * S]; None where strides allow no list."""
    batch, heads, _, width = buffer.shape
    step_batch, step_head, step_token, step_element = buffer.stride()
    if step_element != 1 or step_batch % width or step_head % width or step_token % width:
        return None
    if step_token != width:
        positions = positions * (step_token // width)
    first = _first_rows(batch, heads, positions.shape[1], step_batch // width, step_head // width, buffer.device)
    return (positions + first).flatten()


@lru_cache(maxsize=256)
def _first_rows(batch: int, heads: int, rows: int, batch_step: int, head_step: int, device: torch.device) -> Tensor:
    """Where each (sequence, head) begins in the list of rows, int64 [B, R, 1]; kept: it costs five operations."""
    head = torch.arange(rows, device=device) // (rows // heads)
    return (torch.arange(batch, device=device)[:, None] * batch_step + head * head_step)[:, :, None]
