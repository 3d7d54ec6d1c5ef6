"""Running the model on a prompt once more, to watch the attention of what is fed after it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ..methods.state import Watch
from .attachment import attention_observer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHUNK = 2048  # tokens of the prompt that are fed at once; limits the memory of activations


@torch.no_grad()
def feed_after(model: PreTrainedModel, ids: Tensor, texts: Iterable[Tensor], watch: Watch) -> None:
    """Prefill a prompt `ids` [1, L] again, then feed each of `texts` [1, n] directly after it, and watch its attention.

    Texts do not see each other. `watch` is called as `kvviz.methods.state.Prompt.feed` says. The keys and values are
    in a cache of transformers, which is gone afterwards; the model, its hooks and running generations are as before.
    """
    cache, length = DynamicCache(config=model.config), ids.shape[1]
    whole = [index for index, layer in enumerate(cache.layers) if type(layer) is DynamicLayer]

    def ignore(*args: object) -> None:
        """An observer of an outer pass must not take this one's attention for its own."""

    with attention_observer(model, ignore):
        for chunk in ids.split(CHUNK, dim=1):
            model(chunk, past_key_values=cache, use_cache=True, logits_to_keep=1)
    after_prompt = {  # layers that cannot drop the last tokens again, like sliding windows
        index: layer for index, layer in enumerate(cache.layers) if index not in whole
    }
    for number, text in enumerate(texts):

        def observe(
            layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, softcap: float | None,
            number: int = number,
        ) -> None:  # fmt: skip
            if layer in whole:
                watch(number, layer, queries, keys, queries.shape[-1] ** -0.5 if scale is None else scale, softcap)

        for index, layer in after_prompt.items():
            cache.layers[index] = copy.deepcopy(layer)
        with attention_observer(model, observe):
            model(text.to(ids.device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        for index in whole:
            kept = cache.layers[index]
            assert isinstance(kept, DynamicLayer)
            assert kept.keys is not None
            assert kept.values is not None
            kept.keys, kept.values = kept.keys[:, :, :length], kept.values[:, :, :length]
