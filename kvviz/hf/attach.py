"""Switching a model to kvviz's attention function and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from ..errors import UnsupportedModelError
from .exact import exact_attention

IMPLEMENTATION = "kvviz"

AttentionCallback = Callable[[int, Tensor, Tensor, Tensor], None]
_callback: ContextVar[AttentionCallback | None] = ContextVar("kvviz_attention_callback", default=None)
_lock = threading.Lock()


def attach(model: PreTrainedModel) -> None:
    """Let `model` work with SelectiveCache; with any other cache it does what it did. Idempotent.

    Raises UnsupportedModelError for a model whose attention transformers cannot replace.
    """
    with _lock:
        if not getattr(model, "_kvviz_users", 0):
            _switch(model)
        model._kvviz_users = max(getattr(model, "_kvviz_users", 0), 1)  # type: ignore[assignment]


def detach(model: PreTrainedModel) -> None:
    """Give `model` back the attention implementation it had before `attach`."""
    with _lock:
        if getattr(model, "_kvviz_users", 0):
            model.set_attn_implementation(model._kvviz_original)  # type: ignore[arg-type]
            del model._kvviz_users, model._kvviz_original


@contextmanager
def attached(model: PreTrainedModel) -> Iterator[None]:
    """`attach` for the length of a block; several blocks and threads may overlap on one model."""
    with _lock:
        if not getattr(model, "_kvviz_users", 0):
            _switch(model)
        model._kvviz_users = getattr(model, "_kvviz_users", 0) + 1  # type: ignore[assignment]
    try:
        yield
    finally:
        with _lock:
            users = getattr(model, "_kvviz_users", 0) - 1
            if users > 0:
                model._kvviz_users = users  # type: ignore[assignment]
            elif users == 0:
                model.set_attn_implementation(model._kvviz_original)  # type: ignore[arg-type]
                del model._kvviz_users, model._kvviz_original


@contextmanager
def attention_observer(model: PreTrainedModel, callback: AttentionCallback) -> Iterator[None]:
    """Call `callback(layer, queries [B, Q, n, D], keys [B, H, L, D], values [B, H, L, D])` at every attention.

    All three are after RoPE. Only forward passes of this thread are seen; their results do not change.
    """
    token = _callback.set(callback)
    try:
        with attached(model):
            yield
    finally:
        _callback.reset(token)


def _switch(model: PreTrainedModel) -> None:
    original = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise UnsupportedModelError(
            "attach",
            f"{type(model).__name__}, which does not use transformers' AttentionInterface",
            "a model whose attention can be replaced, such as Llama, Qwen, Mistral, Gemma, Phi-3 or GPT-NeoX",
        )
    model._kvviz_original = original


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if kwargs.get("s_aux") is not None:
        raise UnsupportedModelError(
            "attention", f"{type(module).__name__} with learned attention sinks", "a model without them"
        )
    callback = _callback.get()
    if callback is not None:
        callback(module.layer_idx, query, key, value)  # type: ignore[arg-type]  # an int on every attention module
    layer = getattr(key, "kv_layer", None)
    if layer is not None:
        return layer.attend(module, query, key, value, attention_mask, scaling, softcap, **kwargs), None
    return exact_attention(module, query, key, value, attention_mask, scaling, softcap, dropout=dropout, **kwargs), None


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
