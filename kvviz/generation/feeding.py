"""feed(): a forward pass over new tokens. All that runs a model on a cache goes through it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache as memory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

if TYPE_CHECKING:
    from ..models import LanguageModel


def feed(lm: LanguageModel, cache: Cache | None, ids: Tensor, starts: Sequence[int] = (), kept: int = 1) -> Any:
    """The model's output for tokens [B, n] behind the cached ones, with the logits of the last `kept` of them.

    `starts` counts each row's padding, which is on the left. Positions are given: some models (Bamba) count from 0
    again in each pass without them.
    """
    seen = 0 if cache is None else cache.get_seq_length()
    places = torch.arange(seen + ids.shape[1], device=ids.device)[None]  # [1, L]
    inputs: dict[str, Tensor] = {}
    if any(starts):
        padding = torch.tensor(starts, device=ids.device)[:, None]
        inputs["attention_mask"] = (places >= padding).long()
        places = (places - padding).clamp(min=0)
    if _takes_positions(type(lm.model).forward):
        inputs["position_ids"] = places[:, seen:]
    return lm.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=kept, **inputs)


@memory
def _takes_positions(forward: Callable[..., Any]) -> bool:
    return "position_ids" in inspect.signature(forward).parameters
