"""Exact attention: the model's attention over all keys, for prompts and dense layers."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ..errors import InvalidInputError, UnsupportedModelError

EAGER_BLOCK = 512  # queries per block when the model's eager attention prefills: limits its score matrix


def exact_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    **kwargs: Any,
) -> Tensor:
    """Output [B, n, Q, D] of the model's attention: SDPA, or its eager form with soft-capping, which SDPA lacks."""
    if softcap is None:
        output: Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)[0]
        return output
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise UnsupportedModelError(
            "attention", f"soft-capping in {type(module).__name__}", "a model with an eager_attention_forward"
        )
    blocks = []
    for start in range(0, query.shape[2], EAGER_BLOCK):
        part = slice(start, start + EAGER_BLOCK)
        additive = _additive_mask(mask, query, key, part)
        blocks.append(
            eager(module, query[:, :, part], key, value, additive, scaling=scaling, softcap=softcap, **kwargs)[0]
        )
    return torch.cat(blocks, dim=1)


def _additive_mask(mask: Tensor | None, query: Tensor, key: Tensor, part: slice) -> Tensor:
    """The additive mask of eager attention for a block of queries, [B or 1, Q or 1, n, L]."""
    if mask is None:  # transformers omits a mask that is only causal
        total, new = key.shape[2], query.shape[2]
        positions = torch.arange(total - new, total, device=query.device)[part]
        allowed = (torch.arange(total, device=query.device) <= positions[:, None])[None, None]
    else:
        allowed = mask[:, :, part]
        if allowed.dtype != torch.bool:  # already additive
            return allowed
    return torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill(
        ~allowed, torch.finfo(query.dtype).min
    )


def left_padding(mask: Tensor | None, length: int, *, whole: bool = True) -> list[int] | None:
    """Padding tokens at the start of each batch row, from the last query's row of a boolean mask [B, 1, n, L].

    Until the prompt is `whole`, a row may consist of padding only. Raises InvalidInputError for a mask with gaps.
    """
    if mask is None:
        return None
    visible = mask[:, 0, -1]  # [B, L]
    starts = visible.int().argmax(-1)
    if not whole:
        starts = torch.where(visible.any(-1), starts, length)
    if bool((visible.sum(-1) != length - starts).any()):
        raise InvalidInputError(
            "prefill with SelectiveCache",
            "an attention mask with gaps",
            "left padding only (tokenizer.padding_side='left')",
        )
    return starts.tolist() if bool(starts.any()) else None
