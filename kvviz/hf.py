"""SelectiveCache and the attention function behind it: the only file on transformers' extension points."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from .errors import CacheMismatchError, InvalidInputError, KVVizError, UnsupportedModelError
from .layer import LayerCache
from .ledger import Ledger, ledger_of
from .methods import resolve
from .methods.base import LayerContext, Method

IMPLEMENTATION = "kvviz"
STORES = ("device",)
EAGER_BLOCK = 512  # queries a block where a model's own eager attention prefills: bounds its score matrix

AttentionCallback = Callable[[int, Tensor, Tensor, Tensor], None]
_callback: ContextVar[AttentionCallback | None] = ContextVar("kvviz_attention_callback", default=None)


class SelectiveLayer(DynamicLayer):
    """A transformers cache layer whose decode steps attend what a method selects."""

    is_croppable = False

    def __init__(self, cache: LayerCache) -> None:
        super().__init__()
        self.cache = cache
        self.awaiting = False  # keys were handed to the model and have not come back to our attention function
        self.config: Any = None
        self.expected_length = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, H, n, D]; returns all of them, the keys marked with this layer."""
        store, context = self.cache.store, self.cache.context
        batch, heads, new, dim = key_states.shape
        wanted = (store.key_buffer.shape[0] if store.length else batch, context.n_kv_heads, context.head_dim)
        if (batch, heads, dim) != wanted:
            raise CacheMismatchError(f"update of cache layer {context.index}", f"batch, KV heads, head_dim = {(batch, heads, dim)}",
                                     f"{wanted}; use a new SelectiveCache for another model or batch size")  # fmt: skip
        store.reserve(key_states, value_states, self.expected_length)
        store.append(key_states, value_states)
        self.is_initialized = True
        keys = store.keys
        keys.kv_layer = self  # type: ignore[attr-defined]  # how the attention function finds its layer
        self.awaiting = True
        return keys, store.values

    def attend(self, module: nn.Module, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None,
               softcap: float | None, **kwargs: Any) -> Tensor:  # fmt: skip
        """Attention output [B, n, Q, D]: exact over a prompt, over the selection for a single decoded token."""
        self.awaiting = False
        if getattr(module, "config", None) is not self.config:
            raise CacheMismatchError("attention", f"layer {self.cache.context.index} of another model", "the model that this SelectiveCache was made for")
        length, new = self.cache.store.length, query.shape[2]
        if new == 1 and self.cache.built and length > self.expected_length:
            if not self.cache.dense:
                return self.cache.decode(query[:, :, 0])[:, None]
            return _exact(module, query, keys, values, mask, scaling, softcap, **kwargs)
        output = _exact(module, query, keys, values, mask, scaling, softcap, **kwargs)
        self.cache.bind(scaling or self.cache.context.head_dim**-0.5, softcap)
        self.cache.keep_queries(query)
        if length >= self.expected_length:
            self.cache.build(_left_padding(mask, length))
        return output

    def get_seq_length(self) -> int:
        """Tokens stored."""
        return self.cache.store.length

    def reset(self) -> None:
        """Forget every token."""
        self.cache = LayerCache(self.cache.context, self.cache.method, retain_queries=self.cache.retain_queries)
        self.awaiting = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused: a method's state is not reordered between beams."""
        raise InvalidInputError("generate with SelectiveCache", "beam search", "greedy decoding or sampling (num_beams=1)")

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: what a method has seen cannot be taken back."""
        raise InvalidInputError("generate with SelectiveCache", "a crop of the cache (assisted decoding)", "plain greedy decoding or sampling")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused, as `reorder_cache`."""
        raise InvalidInputError("generate with SelectiveCache", "a batch repeated after the prefill", "num_return_sequences without it")

    def batch_select_indices(self, indices: Tensor) -> None:
        """Refused, as `reorder_cache`."""
        raise InvalidInputError("generate with SelectiveCache", "a part of the batch", "the whole batch")


class SelectiveCache(Cache):
    """A cache for `model.generate(..., past_key_values=cache)` that attends what `method` selects.

    Call `kvviz.attach(model)` once before. Prompts are prefilled with exact attention; each decoded token then attends
    the selection. Later prompts on the same cache (multi-turn) are prefilled over everything and indexed anew.
    Layers that no method can serve (sliding windows, linear attention) stay as transformers makes them and are named
    in `exact_layers`. `store` is where keys and values are kept: "device".

    Raises UnknownNameError for an unknown method, UnsupportedModelError for a model without attention layers,
    InvalidInputError for an unknown store.
    """

    def __init__(self, model: PreTrainedModel, method: str | Method, store: str = "device", *, details: bool = False,
                 retain_queries: bool = False) -> None:  # fmt: skip
        if store not in STORES:
            raise InvalidInputError("SelectiveCache: store", repr(store), f"one of {STORES}")
        self.config = model.config.get_text_config(decoder=True)
        self.method = resolve(method)
        layers = DynamicCache(config=model.config).layers
        if not any(isinstance(layer, DynamicLayer) for layer in layers):
            raise UnsupportedModelError("SelectiveCache", f"{type(model).__name__}, which has no attention layers", "a decoder with attention")
        for index, layer in enumerate(layers):
            if type(layer) is DynamicLayer:
                context = _context(self.config, index, details)
                layers[index] = self._selective(LayerCache(context, self.method, retain_queries=retain_queries))
        super().__init__(layers=layers)
        self._last: SelectiveLayer | None = None

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """As transformers' own; raises CacheMismatchError where the model lost the link to this cache."""
        if self._last is not None and self._last.awaiting:
            raise CacheMismatchError(
                f"attention of layer {self._last.cache.context.index}", "keys of a SelectiveCache that did not reach kvviz's attention",
                "kvviz.attach(model) before, a model that passes its cached keys on unchanged, and a new cache after an interrupted step",
            )  # fmt: skip
        if layer_idx >= len(self.layers):
            raise CacheMismatchError("update of the cache", f"layer {layer_idx}", f"a model of {len(self.layers)} layers")
        updated: tuple[Tensor, Tensor] = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        layer = self.layers[layer_idx]
        self._last = layer if isinstance(layer, SelectiveLayer) else None
        return updated

    @property
    def selective_layers(self) -> list[LayerCache]:
        """The layers that the method serves, ascending."""
        return [layer.cache for layer in self.layers if isinstance(layer, SelectiveLayer)]

    @property
    def exact_layers(self) -> tuple[int, ...]:
        """The layers that no method can serve and that attend as the model does."""
        return tuple(index for index, layer in enumerate(self.layers) if not isinstance(layer, SelectiveLayer))

    def expect(self, prompt_length: int) -> None:
        """Announce the length of the prompt, so that one fed in chunks is indexed once, at its end."""
        for layer in self.layers:
            if isinstance(layer, SelectiveLayer):
                layer.expected_length = prompt_length

    def fork(self, method: str | Method) -> SelectiveCache:
        """An independent copy of the cached prompt, indexed for another method.

        A method that needs the prompt's queries can only be forked to where this cache was made with `retain_queries`.
        """
        other = copy.copy(self)
        other.method, other._last = resolve(method), None
        other.layers = [
            self._selective(layer.cache.fork(other.method)) if isinstance(layer, SelectiveLayer) else copy.deepcopy(layer)
            for layer in self.layers
        ]
        return other

    def ledger(self) -> Ledger:
        """Where this cache's tokens and bytes went."""
        return ledger_of(self.selective_layers, self.exact_layers)

    def _selective(self, cache: LayerCache) -> SelectiveLayer:
        layer = SelectiveLayer(cache)
        layer.config = self.config
        layer.is_initialized = cache.store.length > 0
        return layer


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


_lock = threading.Lock()


def _switch(model: PreTrainedModel) -> None:
    original = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise UnsupportedModelError("attach", f"{type(model).__name__}, which does not use transformers' AttentionInterface",
                                    "a model whose attention can be replaced, such as Llama, Qwen, Mistral, Gemma, Phi-3 or GPT-NeoX")  # fmt: skip
    model._kvviz_original = original  # type: ignore[assignment]


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, dropout: float = 0.0,
               scaling: float | None = None, softcap: float | None = None, **kwargs: Any) -> tuple[Tensor, None]:  # fmt: skip
    if kwargs.get("s_aux") is not None:
        raise UnsupportedModelError("attention", f"{type(module).__name__} with learned attention sinks", "a model without them")
    callback = _callback.get()
    if callback is not None:
        callback(module.layer_idx, query, key, value)  # type: ignore[arg-type]  # an int on every attention module
    layer = getattr(key, "kv_layer", None)
    if layer is not None:
        return layer.attend(module, query, key, value, attention_mask, scaling, softcap, **kwargs), None
    return _exact(module, query, key, value, attention_mask, scaling, softcap, dropout=dropout, **kwargs), None


def _exact(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None,
           softcap: float | None, **kwargs: Any) -> Tensor:  # fmt: skip
    """The model's own attention: SDPA, or its eager form where SDPA cannot soft-cap. [B, n, Q, D]."""
    if softcap is None:
        output: Tensor = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **kwargs)[0]
        return output
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise UnsupportedModelError("attention", f"soft-capping in {type(module).__name__}", "a model with an eager_attention_forward")
    blocks = []
    for start in range(0, query.shape[2], EAGER_BLOCK):
        part = slice(start, start + EAGER_BLOCK)
        additive = _additive_mask(mask, query, key, part)
        blocks.append(eager(module, query[:, :, part], key, value, additive, scaling=scaling, softcap=softcap, **kwargs)[0])
    return torch.cat(blocks, dim=1)


def _additive_mask(mask: Tensor | None, query: Tensor, key: Tensor, part: slice) -> Tensor:
    """What eager attention adds to its logits for a block of queries, [B or 1, 1, n, L]."""
    if mask is None:  # transformers leaves the mask out where it is plainly causal
        total, new = key.shape[2], query.shape[2]
        positions = torch.arange(total - new, total, device=query.device)[part]
        allowed = torch.arange(total, device=query.device) <= positions[:, None]
        allowed = allowed[None, None]
    else:
        allowed = mask[:, :, part]
    return torch.zeros(allowed.shape, dtype=query.dtype, device=query.device).masked_fill(~allowed, torch.finfo(query.dtype).min)


def _left_padding(mask: Tensor | None, length: int) -> list[int] | None:
    """Padding tokens at the start of each batch row, from the last query's row of a boolean mask [B, 1, n, L]."""
    if mask is None:
        return None
    seen = mask[:, 0, -1]  # [B, L]
    starts = seen.int().argmax(-1)
    if bool((seen.sum(-1) != length - starts).any()):
        raise KVVizError("prefill with SelectiveCache", "an attention mask with gaps", "left padding only (tokenizer.padding_side='left')")
    return starts.tolist() if bool(starts.any()) else None


def _context(config: Any, index: int, details: bool) -> LayerContext:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return LayerContext(index, config.num_hidden_layers, heads, kv_heads, head_dim, head_dim**-0.5, details=details)


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)

__all__ = ["SelectiveCache", "attach", "attached", "attention_observer", "detach"]
