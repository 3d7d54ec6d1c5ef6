"""capture(): the queries, keys and values of a model's attention over a prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm.auto import tqdm

from ..cache.attachment import attention_observer
from ..cache.rotations import rotations
from ..errors import InvalidInputError, KVVizError
from ..models.encoding import prompt_ids
from ..models.wrapping import language_model
from ..trace import Trace
from .feeding import feed
from .generating import PREFILL_CHUNK

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..models import LanguageModel

__all__ = ["capture"]


@torch.inference_mode()
def capture(
    lm: LanguageModel | PreTrainedModel,
    prompt: str | Tensor,
    layers: Iterable[int] | None = None,
    max_tokens: int | None = None,
) -> Trace:
    """A Trace of `prompt`: float16 queries [Q, L, D], keys and values [H, L, D] after RoPE, for each chosen layer.

    `prompt` is text or int64 [1, L]; `max_tokens` cuts it to its first tokens. `layers` are counted from 0; the default
    is all layers with attention, 59 kB per token for SmolLM2-135M. Prompts over 2,048 tokens are fed in chunks of that
    many.

    Raises InvalidInputError for an empty prompt, one longer than the model's positions, one that is not a single row of
    the model's token ids, `max_tokens` below 1 or layers out of range; KVVizError for NaN, infinity or a number beyond
    float16's largest, 65,504, in a captured tensor.
    """
    if max_tokens is not None and max_tokens < 1:
        raise InvalidInputError("capture: max_tokens", max_tokens, "an int >= 1, or None for the whole prompt")
    lm = language_model("capture", lm)
    ids = prompt_ids("capture", lm, prompt, max_tokens=max_tokens)
    count = lm.geometry.n_layers
    chosen = tuple(range(count)) if layers is None else tuple(layers)
    if not chosen or any(layer not in range(count) for layer in chosen):
        raise InvalidInputError("capture: layers", chosen, f"at least one of 0 to {count - 1}")
    captured = _Captured(chosen, length=ids.shape[1])
    cache = None  # with the first chunk the model makes its cache
    chunks = torch.split(ids, PREFILL_CHUNK, dim=1)
    with attention_observer(lm.model, captured.add):
        for chunk in tqdm(chunks, desc="capture", leave=False, disable=None if len(chunks) > 1 else True):
            cache = feed(lm, cache, chunk).past_key_values
            captured.start += chunk.shape[1]
    captured.check_complete(required=layers is not None)
    return Trace(
        model=lm.name, geometry=lm.geometry, tokens=lm.tokens(ids), token_ids=ids[0].cpu().numpy(),
        queries=captured.arrays["queries"], keys=captured.arrays["keys"], values=captured.arrays["values"],
        scale=captured.scale, softcap=captured.softcap,
        rotations=rotations(lm.model),
    )  # fmt: skip


class _Captured:
    """Host arrays of the captured layers, filled chunk by chunk."""

    def __init__(self, layers: tuple[int, ...], length: int) -> None:
        self.layers, self.length = layers, length
        self.start = 0  # tokens of the earlier chunks
        self.scale: float | None = None
        self.softcap: float | None = None
        self.arrays: dict[str, dict[int, NDArray[Any]]] = {"queries": {}, "keys": {}, "values": {}}

    def add(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, softcap: float | None
    ) -> None:
        """Store one layer's chunk: queries [1, Q, n, D]; keys and values [1, H, L, D], of which the last n are new."""
        if layer not in self.layers:
            return
        self.scale, self.softcap = (None if factor is None else float(factor) for factor in (scale, softcap))
        new = queries.shape[2]
        for name, tensor in (("queries", queries), ("keys", keys), ("values", values)):
            half = tensor[0, :, -new:].to(torch.float16)  # [heads, n, D]
            if not torch.isfinite(half).all():
                finite = bool(torch.isfinite(tensor).all())
                got = f"numbers up to {tensor.abs().max().item():,.0f}" if finite else "NaN or infinity"
                wanted = "finite numbers up to 65,504, float16's largest"
                raise KVVizError(f"capture {name} of layer {layer}", got, wanted)
            if layer not in self.arrays[name]:
                self.arrays[name][layer] = np.empty((half.shape[0], self.length, half.shape[2]), np.float16)
            self.arrays[name][layer][:, self.start : self.start + new] = half.cpu().numpy()

    def check_complete(self, *, required: bool) -> None:
        """Raise InvalidInputError if a requested layer, or every layer, has no attention."""
        missing = sorted(set(self.layers) - set(self.arrays["keys"]))
        if missing and (required or not self.arrays["keys"]):
            got = f"{missing}, which have no attention"
            raise InvalidInputError("capture: layers", got, f"layers with attention: {sorted(self.arrays['keys'])}")
