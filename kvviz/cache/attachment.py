"""Attachment: switches a model to kvviz's attention function and back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from ..errors import UnsupportedModelError
from .exact import exact_attention
from .speculation import note_queries

IMPLEMENTATION = "kvviz"

AttentionCallback = Callable[[int, Tensor, Tensor, Tensor, float | None, float | None], None]
AttentionFunction = Callable[..., Tensor]  # takes what `exact_attention` takes, and returns its output [B, n, Q, D]
_callback: ContextVar[AttentionCallback | None] = ContextVar("kvviz_attention_callback", default=None)
_replacement: ContextVar[AttentionFunction | None] = ContextVar("kvviz_attention_replacement", default=None)
_lock = threading.Lock()


@dataclass
class _Attachment:
    original: str  # the attention implementation to restore
    by_hand: bool = False  # attached by `attach`
    blocks: int = 0  # open blocks of `attached`


_attachments: WeakKeyDictionary[PreTrainedModel, _Attachment] = WeakKeyDictionary()


def attach(model: PreTrainedModel) -> None:
    """Prepare `model` for SelectiveCache. With other caches, its behaviour does not change. Idempotent.

    Raises UnsupportedModelError for a model whose attention transformers cannot replace.
    """
    with _lock:
        _switched(model).by_hand = True


def detach(model: PreTrainedModel) -> None:
    """Undo `attach`: restore the attention implementation of `model`, once kvviz does not generate with it any more."""
    with _lock:
        if model in _attachments:
            _attachments[model].by_hand = False
            _restore_if_unused(model)


@contextmanager
def attached(model: PreTrainedModel) -> Iterator[None]:
    """Attach `model` within a block. Blocks may overlap on one model, also in several threads."""
    with _lock:
        _switched(model).blocks += 1
    try:
        yield
    finally:
        with _lock:
            _attachments[model].blocks -= 1
            _restore_if_unused(model)


@contextmanager
def attention_observer(model: PreTrainedModel, callback: AttentionCallback) -> Iterator[None]:
    """Call `callback(layer, queries [B, Q, n, D], keys [B, H, L, D], values [B, H, L, D], scale, softcap)` before each
    attention.

    Queries and keys are after RoPE. `scale` multiplies the logits (None: head_dim ** -0.5), and `softcap` limits them
    (None: no limit). Only the forward passes of this thread are observed; their results do not change.
    """
    token = _callback.set(callback)
    try:
        with attached(model):
            yield
    finally:
        _callback.reset(token)


@contextmanager
def attention_replaced(model: PreTrainedModel, function: AttentionFunction) -> Iterator[None]:
    """Attend by `function` instead of `exact_attention` within a block, in the forward passes of this thread.

    For forward passes without a SelectiveCache. Gradients flow through the function.
    """
    token = _replacement.set(function)
    try:
        with attached(model):
            yield
    finally:
        _replacement.reset(token)


def _switched(model: PreTrainedModel) -> _Attachment:
    if model in _attachments:
        return _attachments[model]
    original = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise UnsupportedModelError(
            "attach",
            f"{type(model).__name__}, which does not use transformers' AttentionInterface",
            "a model whose attention can be replaced, such as Llama, Qwen, Mistral, Gemma, Phi-3 or GPT-NeoX",
        )
    _attachments[model] = _Attachment(str(original))
    return _attachments[model]


def _restore_if_unused(model: PreTrainedModel) -> None:
    attachment = _attachments[model]
    if not attachment.by_hand and attachment.blocks == 0:
        model.set_attn_implementation(attachment.original)
        del _attachments[model]


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
    note_queries(query)
    if kwargs.get("s_aux") is not None:
        raise UnsupportedModelError(
            "attention", f"{type(module).__name__} with learned attention sinks", "a model without them"
        )
    callback = _callback.get()
    if callback is not None:
        callback(module.layer_idx, query, key, value, scaling, softcap)  # type: ignore[arg-type]  # an int on every attention module
    layer = getattr(key, "kv_layer", None)  # a weak reference; the model holds the cache during attention
    if layer is not None:
        return layer().attend(module, query, key, value, attention_mask, scaling, softcap, **kwargs), None
    attend = _replacement.get() or exact_attention
    return attend(module, query, key, value, attention_mask, scaling, softcap, dropout=dropout, **kwargs), None


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
