"""SelectiveLayer: a transformers cache layer that decodes over a method's selection."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicLayer

from ..errors import CacheMismatchError, InvalidInputError
from ..methods.base import Method
from ..methods.capabilities import SparsePrefill
from ..offload.growing import SPARE_TOKENS
from ..trace.timeline import span
from .exact import exact_attention, left_padding
from .layer_cache import LayerCache

ExactAttention = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of keys, values and a mask


class SelectiveLayer(DynamicLayer):
    """A transformers cache layer whose decode steps attend to a method's selection.

    It adapts a `LayerCache`, which does the work on a `LayerStore`, to transformers' interface.
    """

    is_croppable = False

    def __init__(self, cache: LayerCache, prefill: Method) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # not annotated there
        self.cache = cache
        self.prefill = prefill  # the method whose attention prompts use
        self.awaiting = False  # the model got keys that have not reached our attention function yet
        self.config: Any = None
        self.expected_length = 0
        self.following: weakref.ref[SelectiveLayer] | None = None  # next layer that selects; weak: they form a ring

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values [B, H, n, D]; returns all of them, with a link to this layer on the keys."""
        store, context = self.cache.store, self.cache.context
        batch, heads, _, dim = key_states.shape
        expected = (store.batch if store.length else batch, context.n_kv_heads, context.head_dim)
        if (batch, heads, dim) != expected:
            raise CacheMismatchError(
                f"update of cache layer {context.index}",
                f"batch, KV heads, head_dim = {(batch, heads, dim)}",
                f"{expected}; use a new SelectiveCache for another model or batch size",
            )
        if store.length < self.expected_length:  # with room to decode, so that the first decode step copies nothing
            store.reserve(key_states, value_states, self.expected_length + SPARE_TOKENS)
        with span(store.timeline, "compute", "store"):
            store.append(key_states, value_states)
        self.is_initialized = True
        self.awaiting = True
        if self._selects(key_states.shape[2]):  # attention reads the tokens from the store
            keys, values = key_states, value_states
        else:
            keys, values = store.keys, store.values
        # The attention function finds its layer by this link. It is weak: otherwise a state that keeps a view of the
        # keys would form a reference cycle with the layer, which Python's garbage collector cannot see.
        keys.kv_layer = weakref.ref(self)  # type: ignore[attr-defined]  # our attribute
        return keys, values

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | None,
        scaling: float | None,
        softcap: float | None,
        **kwargs: Any,
    ) -> Tensor:
        """Attention output [B, n, Q, D]: exact for a prompt, over the selection for a decoded token."""
        self.awaiting = False
        if getattr(module, "config", None) is not self.config:
            raise CacheMismatchError(
                "attention",
                f"layer {self.cache.context.index} of another model",
                "the model that this SelectiveCache was made for",
            )
        length, new, timeline = self.cache.store.length, query.shape[2], self.cache.store.timeline

        def exact(keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
            return exact_attention(module, query, keys, values, mask, scaling, softcap, **kwargs)

        if self._selects(new):
            output = self.cache.decode(query[:, :, 0])[:, None]
            following = self.following() if self.following is not None else None
            if following is not None:
                following.cache.prefetch()
        elif self._decodes(new):
            with span(timeline, "compute", "attention"):
                output = exact(keys, values, mask)
        else:
            self.cache.bind(scaling or self.cache.context.head_dim**-0.5, softcap)
            with span(timeline, "compute", "attention"):
                output = self._attend_prompt(query, keys, values, mask, exact)
            self.cache.keep_queries(query)
            if length >= self.expected_length:
                self.cache.build(left_padding(mask, length))
            else:
                with span(timeline, "compute", "store"):
                    self.cache.store.offload_chunk()
        if timeline is not None:
            timeline.leave()
        return output

    def _decodes(self, new: int) -> bool:
        """Whether `new` tokens, already stored, are a decode step and not a prompt."""
        return new == 1 and self.cache.built and self.cache.store.length > self.expected_length

    def _selects(self, new: int) -> bool:
        """Whether `new` tokens, already stored, attend to the method's selection."""
        return not self.cache.dense and self._decodes(new)

    def _attend_prompt(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, exact: ExactAttention
    ) -> Tensor:
        """Attention output [B, n, Q, D] of a prompt: over all cached tokens, or by the sparse prefill method."""
        inputs = self.cache.prompt_inputs(query.shape[2])
        if inputs is not None:
            return exact(*inputs)
        if not isinstance(self.prefill, SparsePrefill):
            return exact(keys, values, mask)
        output, new, length = torch.zeros_like(query), query.shape[2], keys.shape[2]
        starts = left_padding(mask, length, whole=False)
        padded_rows = [(slice(row, row + 1), start) for row, start in enumerate(starts or [])]
        for rows, start in padded_rows or [(slice(None), 0)]:
            first = max(0, start - (length - new))  # earlier queries are padding
            output[rows, :, first:] = self.prefill.attend_prompt(
                self.cache.context, query[rows, :, first:], keys[rows, :, start:], values[rows, :, start:]
            )
        return output.transpose(1, 2)

    def get_seq_length(self) -> int:
        """Number of stored tokens."""
        return self.cache.store.length

    def reset(self) -> None:
        """Remove all tokens."""
        old, store = self.cache, self.cache.store.renewed()
        store.timeline = old.store.timeline
        if old.context.prompt is not None:
            old.context.prompt.ids = old.context.prompt.encode = None
        self.cache = LayerCache(old.context, old.method, store, retain_queries=old.retain_queries)
        self.cache.edit = old.edit
        self.cache.speculate = old.speculate
        self.awaiting = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Refused: a method's state cannot be reordered between beams."""
        raise _refusal("beam search", "greedy decoding or sampling (num_beams=1)")

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: tokens cannot be removed from a method's state."""
        raise _refusal("cropping of the cache (assisted decoding)", "plain greedy decoding or sampling")

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refused, like `reorder_cache`."""
        raise _refusal("a batch repeated after the prefill", "a batch repeated before it")

    def batch_select_indices(self, indices: Tensor) -> None:
        """Refused, like `reorder_cache`."""
        raise _refusal("a part of the batch", "the whole batch")


def _refusal(got: str, wanted: str) -> InvalidInputError:
    return InvalidInputError("generate with SelectiveCache", got, wanted)
