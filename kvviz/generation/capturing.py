"""capture(): the queries, keys and values of a model's attention over a prompt."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
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
from ..trace.captured import writing_trace
from ..trace.parts import ArrayFile
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
    path: str | os.PathLike[str] | None = None,
) -> Trace:
    """A Trace of `prompt`: float16 queries [Q, L, D], keys and values [H, L, D] after RoPE, for each chosen layer.

    `prompt` is text or int64 [1, L]; `max_tokens` cuts it to its first tokens. `layers` are counted from 0; the default
    is all layers with attention, 59 kB per token for SmolLM2-135M. Prompts over 2,048 tokens are fed in chunks of that
    many. With a `path`, each chunk is written to this file when it is there (as `Trace.save` writes it), and the trace
    is a memory map of the file: a long trace never has to fit into memory. If anything fails, no file is left.

    Raises InvalidInputError for an empty prompt, one longer than the model's positions, one that is not a single row of
    the model's token ids, `max_tokens` below 1 or layers out of range; KVVizError for NaN, infinity or a number beyond
    float16's largest, 65,504, in a captured tensor; OSError if the file cannot be written.
    """
    if max_tokens is not None and max_tokens < 1:
        raise InvalidInputError("capture: max_tokens", max_tokens, "an int >= 1, or None for the whole prompt")
    lm = language_model("capture", lm)
    ids = prompt_ids("capture", lm, prompt, max_tokens=max_tokens)
    count = lm.geometry.n_layers
    chosen = tuple(range(count)) if layers is None else tuple(layers)
    if not chosen or any(layer not in range(count) for layer in chosen):
        raise InvalidInputError("capture: layers", chosen, f"at least one of 0 to {count - 1}")
    captured = _Chunk(chosen)
    arrays: dict[str, Any] = {"queries": {}, "keys": {}, "values": {}}
    with ExitStack() as files, attention_observer(lm.model, captured.add):
        about: Trace | None = None  # all but the arrays
        file: ArrayFile | None = None
        cache, start = None, 0  # with the first chunk the model makes its cache
        chunks = torch.split(ids, PREFILL_CHUNK, dim=1)
        for chunk in tqdm(chunks, desc="capture", leave=False, disable=None if len(chunks) > 1 else True):
            cache = feed(lm, cache, chunk).past_key_values
            if about is None:
                captured.check_complete(required=layers is not None)
                about = Trace(
                    model=lm.name, geometry=lm.geometry, tokens=lm.tokens(ids), token_ids=ids[0].cpu().numpy(),
                    queries={}, keys={}, values={}, **captured.factors, rotations=rotations(lm.model),
                )  # fmt: skip
                if path is not None:
                    file = files.enter_context(writing_trace(path, about, captured.layers_found))
            for name, layer, part in captured.parts():
                if file is not None:
                    file.write(f"{name}.{layer}", part, start)
                    continue
                if not start:
                    arrays[name][layer] = np.empty((part.shape[0], ids.shape[1], part.shape[2]), np.float16)
                arrays[name][layer][:, start : start + part.shape[1]] = part
            start += chunk.shape[1]
    assert about is not None  # a prompt has at least one token
    return replace(about, **arrays) if path is None else Trace.load(path)


class _Chunk:
    """The captured tensors of one chunk of the prompt."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        self.factors: dict[str, Any] = {"scale": None, "softcap": None}
        self._parts: dict[tuple[str, int], NDArray[Any]] = {}

    def add(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, softcap: float | None
    ) -> None:
        """Keep one layer's part: queries [1, Q, n, D]; keys and values [1, H, L, D], of which the last n are new."""
        if layer not in self.layers:
            return
        for name, factor in (("scale", scale), ("softcap", softcap)):
            self.factors[name] = None if factor is None else float(factor)
        new = queries.shape[2]
        for name, tensor in (("queries", queries), ("keys", keys), ("values", values)):
            half = tensor[0, :, -new:].to(torch.float16)  # [heads, n, D]
            if not torch.isfinite(half).all():
                finite = bool(torch.isfinite(tensor).all())
                got = f"numbers up to {tensor.abs().max().item():,.0f}" if finite else "NaN or infinity"
                wanted = "finite numbers up to 65,504, float16's largest"
                raise KVVizError(f"capture {name} of layer {layer}", got, wanted)
            self._parts[name, layer] = half.cpu().numpy()

    @property
    def layers_found(self) -> list[int]:
        """The layers of this chunk, ascending."""
        return sorted(layer for name, layer in self._parts if name == "keys")

    def parts(self) -> Iterator[tuple[str, int, NDArray[Any]]]:
        """Name, layer and part float16 [heads, n, D] of all tensors of the chunk, which are given up on the way."""
        while self._parts:
            (name, layer), part = self._parts.popitem()
            yield name, layer, part

    def check_complete(self, *, required: bool) -> None:
        """Raise InvalidInputError if a requested layer, or every layer, has no attention."""
        missing = sorted(set(self.layers) - set(self.layers_found))
        if missing and (required or not self.layers_found):
            got = f"{missing}, which have no attention"
            raise InvalidInputError("capture: layers", got, f"layers with attention: {self.layers_found}")
