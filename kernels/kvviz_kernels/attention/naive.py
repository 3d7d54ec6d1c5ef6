"""Attention over selected tokens in plain torch: gather the rows, then attend with all heads at once."""

from __future__ import annotations

from functools import cache, lru_cache

import torch
from torch import Tensor

from ..selection.shared import reduce_group
from ..softcap import softcap_

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
    pads = indices < 0 if padded else None
    if pads is not None and not pads.is_cuda and not bool(pads.any()):  # on a GPU this check would have to wait
        pads = None
    positions = indices
    if pads is not None:  # padding reads one of the row's tokens with weight 0: unused rows of the buffer may be NaN
        positions = torch.where(pads, indices.amax(-1, keepdim=True).clamp_(min=0), indices)
    picked_keys, picked_values = _pick_both(keys, values, positions)
    mask = _mask(bias, pads)
    grouped = queries.reshape(batch, rows, heads // rows, width).float()
    if softcap is None and not queries.is_cuda and _flash_is_exact():
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            grouped, picked_keys, picked_values, attn_mask=mask, scale=scale
        )
    else:
        output, lse = _attend(grouped, picked_keys, picked_values, mask, scale, softcap)
    if mask is not None:  # a softmax over no tokens is NaN, and torch's operator gives log-sum-exp 0
        empty = mask.amax(-1) == NEGATIVE_INFINITY
        output.masked_fill_(empty[..., None], 0.0)
        lse.masked_fill_(empty, NEGATIVE_INFINITY)
    return output.reshape(batch, heads, width).to(queries.dtype), lse.reshape(batch, heads)


def gather_weights(
    queries: Tensor, keys: Tensor, indices: Tensor, *, scale: float, group: str, softcap: float | None = None
) -> Tensor:
    """Softmax weights; see `kvviz_kernels.gather_weights`."""
    rows, pads, width = indices.shape[1], indices < 0, keys.shape[-1]
    positions = indices.clamp(min=0)  # padding reads a token, of weight 0
    picked = _pick(keys, positions, _places(keys, positions, width))  # [B, R, S, D]
    grouped = queries.unflatten(1, (rows, -1)).float()
    logits = softcap_((grouped @ picked.mT) * scale, softcap)  # [B, R, G, S]
    weights = logits.masked_fill_(pads[:, :, None], NEGATIVE_INFINITY).softmax(-1).flatten(1, 2)
    return reduce_group(weights, rows, group).masked_fill(pads, -1.0)


def merge_attention(outputs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; see `kvviz_kernels.merge_attention`."""
    lse = torch.stack(lses)  # [N, B, Q]
    total = torch.logsumexp(lse, dim=0)
    shares = torch.nan_to_num((lse - total).exp())  # -inf minus -inf if no set has tokens
    parts = torch.stack(outputs).float().masked_fill_((shares == 0)[..., None], 0.0)  # empty sets may hold NaN
    return (parts * shares[..., None]).sum(0).to(outputs[0].dtype), total


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of queries [B, R, G, D] over keys and values [B, R, S, D], by two matrix products."""
    batch, rows = queries.shape[:2]
    logits = torch.bmm((queries * scale).flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).unflatten(0, (batch, rows))
    softcap_(logits, softcap)
    if mask is not None:
        logits += mask
    weights = logits.softmax(-1)
    # The peak's weight is exp(peak - lse): 4 µs, where torch.logsumexp takes 14 over 9 x 512 logits (EPYC Zen 5).
    lse = logits.amax(-1) - weights.amax(-1).log_()
    return torch.bmm(weights.flatten(0, 1), values.flatten(0, 1)).unflatten(0, (batch, rows)), lse


@cache
def _flash_is_exact() -> bool:
    """Whether torch's CPU attention operator, which returns output and log-sum-exp in one call, exists and is exact.

    The operator is private (since torch 2.2), so it is checked once on a small case. In float32 it takes 49 µs where
    matrix products and softmax take 57 (9 heads over 512 tokens of 64, EPYC Zen 5, 2 threads). In half precision it
    rounds the softmax weights, and without tokens it crashes (torch 2.13), so it is used for neither.
    """
    queries = torch.arange(12, dtype=torch.float32, device="cpu").view(1, 2, 2, 3) / 8
    keys = torch.arange(18, dtype=torch.float32, device="cpu").view(1, 2, 3, 3).sin()
    mask = torch.tensor([0.5, NEGATIVE_INFINITY, 0.0], dtype=torch.float32, device="cpu").expand(1, 2, 1, 3)
    try:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, lse = operator(queries, keys, keys.cos(), attn_mask=mask, scale=0.5)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    exact_output, exact_lse = _attend(queries, keys, keys.cos(), mask, 0.5, None)
    if output.shape != exact_output.shape or lse.shape != exact_lse.shape:
        return False
    return torch.allclose(output, exact_output, atol=1e-6) and torch.allclose(lse, exact_lse, atol=1e-6)


def _mask(bias: Tensor | None, pads: Tensor | None) -> Tensor | None:
    """The mask to add to the logits, float32 [B, R, 1, S]: the bias, and -inf at padding; None without both."""
    if bias is not None:
        mask = bias.float() if pads is None else bias.float().masked_fill(pads, NEGATIVE_INFINITY)
    elif pads is not None:
        mask = torch.zeros(pads.shape, dtype=torch.float32, device=pads.device).masked_fill_(pads, NEGATIVE_INFINITY)
    else:
        return None
    return mask[:, :, None]


def _pick_both(keys: Tensor, values: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of keys and values [B, H, N, D] at `positions` [B, R, S], each float32 [B, R, S, D].

    One index_select over the buffer as a list of rows: 25 µs for 3 x 512 rows of 64, where advanced indexing takes
    190 µs and gather 300 µs (EPYC Zen 5, 2 threads). Keys and values in one row are gathered together: 90 µs instead
    of 119 with cold caches (same machine); a step of SmolLM2 takes the same time.
    """
    width = keys.shape[-1]
    if _lie_in_one_row(keys, values):
        places = _places(keys, positions, 2 * width)
        if places is not None:
            both = _rows_of(keys, places, 2 * width).view(*positions.shape, 2 * width).float()
            return both[..., :width], both[..., width:]
    places = _places(keys, positions, width)
    picked = _pick(keys, positions, places)
    if values.stride() != keys.stride():
        places = _places(values, positions, width)
    return picked, _pick(values, positions, places)


def _lie_in_one_row(keys: Tensor, values: Tensor) -> bool:
    """Whether each token's value starts in memory where its key ends."""
    end_of_key = keys.data_ptr() + keys.shape[-1] * keys.element_size()
    if values.data_ptr() != end_of_key or keys.stride() != values.stride():
        return False
    if keys.shape != values.shape or keys.dtype != values.dtype:
        return False
    return keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()


def _pick(buffer: Tensor, positions: Tensor, places: Tensor | None) -> Tensor:
    """Rows of `buffer` [B, H, N, D] at `positions` [B, R, S], float32 [B, R, S, D]; `places` from `_places`."""
    width = buffer.shape[-1]
    if places is not None:
        return _rows_of(buffer, places, width).view(*positions.shape, width).float()
    of_batch = torch.arange(buffer.shape[0], device=buffer.device)[:, None, None]
    of_head = torch.arange(positions.shape[1], device=buffer.device)[:, None] // (positions.shape[1] // buffer.shape[1])
    return buffer[of_batch, of_head, positions].float()


def _rows_of(buffer: Tensor, places: Tensor, width: int) -> Tensor:
    """Rows of `width` elements, [len(places), width], from the buffer as a list of rows."""
    batch, heads, capacity, _ = buffer.shape
    step_batch, step_head, step_token, _ = buffer.stride()
    last = ((batch - 1) * step_batch + (heads - 1) * step_head + (capacity - 1) * step_token) // width
    return buffer.as_strided((last + 1, width), (width, 1)).index_select(0, places)


def _places(buffer: Tensor, positions: Tensor, width: int) -> Tensor | None:
    """Places of `positions` in `buffer` as a list of rows of `width`, int64 [B * R * S].

    None if the strides do not allow this. Strides may be 0: heads and sequences then share their rows.
    """
    batch, heads = buffer.shape[:2]
    step_batch, step_head, step_token, step_element = buffer.stride()
    if step_element != 1 or step_batch % width or step_head % width or step_token % width:
        return None
    if step_token != width:
        positions = positions * (step_token // width)
    first = _first_rows(batch, heads, positions.shape[1], step_batch // width, step_head // width, buffer.device)
    return (positions + first).flatten()


@lru_cache(maxsize=256)
def _first_rows(batch: int, heads: int, rows: int, batch_step: int, head_step: int, device: torch.device) -> Tensor:
    """Start of each (sequence, head) in the list of rows, int64 [B, R, 1]; cached, since it takes five operations."""
    head = torch.arange(rows, device=device) // (rows // heads)
    return (torch.arange(batch, device=device)[:, None] * batch_step + head * head_step)[:, :, None]
