"""inspect(): what kvviz does with a model, found by a forward pass on shapes alone."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from ..cache.attachment import attention_observer
from ..cache.selective_cache import SelectiveCache
from ..cache.selective_layer import ASSISTED_DECODING, BEAM_SEARCH, SelectiveLayer
from ..errors import InvalidInputError, KVVizError, UnsupportedModelError
from ..methods import resolve
from ..methods.base import Method
from ..models import LanguageModel
from ..models.language_model import check_decoder, geometry_of
from ..models.loading import placement, read_config
from ..trace import Geometry
from .inspection import InspectedLayer, Inspection

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

LENGTHS = (1_024, 8_192, 32_768)
TRIED_TOKENS = 4
NONE = (0, 0, 0)  # the shape of a layer without attention
Shapes = dict[int, tuple[int, int, int]]  # query heads, KV heads and head dimension by layer


@torch.no_grad()
def inspect(
    model: LanguageModel | PreTrainedModel | PreTrainedConfig | str | os.PathLike[str],
    method: str | Method | None = None,
    lengths: Sequence[int] | None = None,
) -> Inspection:
    """An Inspection of a model: served and exact layers, heads, positions, memory by length, and what is refused.

    `model` is a LanguageModel, a transformers model or config, or what `kvviz.load` takes: an alias, directory, .gguf
    file or hub id, of which only the config is read. No weights are read or used: the architecture is made on torch's
    meta device, and one forward pass on its shapes goes through the code that decodes, so that a model is refused here
    with the error that `generate` would raise. With a `method`, layers in which it attends to all tokens
    (`dense_layers`) count as exact. `lengths` are the numbers of tokens for which the report gives the memory.

    Raises the errors of `kvviz.load` for a name that is not found, InvalidInputError for other objects and lengths
    below 1, and the errors of `kvviz.methods.create`.
    """
    chosen = None if method is None else resolve(method)
    if lengths is not None and not all(isinstance(length, int) and length >= 1 for length in lengths):
        raise InvalidInputError("inspect: lengths", list(lengths), "numbers of tokens from 1")
    about = _about(model)
    refused: str | None = None
    geometry: Geometry | None = None
    layers: tuple[InspectedLayer, ...] = ()
    notes: list[str] = []
    architecture, parameters = about.config.model_type, 0
    try:
        empty = _empty(about)
        architecture, parameters = type(empty).__name__, sum(weights.numel() for weights in empty.parameters())
        geometry = geometry_of(empty, about.name)
        cache = SelectiveCache(empty, "full")
        shapes, untried = _tried(empty, cache)
        notes += [untried] if untried else []
        layers = tuple(
            _layer(index, cache, shapes, untried is None, geometry, chosen) for index in range(len(cache.layers))
        )
        if not any(layer.served for layer in layers):
            notes.append("No layer is served: with every method, the model attends as it does without kvviz.")
    except UnsupportedModelError as error:
        refused = str(error)
    positions = geometry.max_positions if geometry else 0
    known = sorted({length for length in LENGTHS if length < positions} | {positions})
    return Inspection(
        name=about.name, architecture=architecture, dtype=str(about.dtype).removeprefix("torch."),
        value_bytes=about.dtype.itemsize, device=about.device, parameters=parameters, geometry=geometry,
        layers=layers, refused=refused, uses=(BEAM_SEARCH, ASSISTED_DECODING), notes=tuple(notes),
        lengths=tuple(known if lengths is None else lengths),
    )  # fmt: skip


@dataclass(frozen=True)
class _About:
    """What is known of a model before it is tried. `made` is its class, None if only the config is there."""

    name: str
    config: Any
    dtype: torch.dtype
    device: str | None = None
    made: Any = None


def _about(model: Any) -> _About:
    from transformers import PreTrainedConfig, PreTrainedModel

    if isinstance(model, LanguageModel):
        return replace(_about(model.model), name=model.name)
    if isinstance(model, PreTrainedModel):
        name = Path(model.name_or_path or "").name or type(model).__name__
        return _About(name, model.config, model.dtype, str(model.device), type(model))
    dtype = placement(None, None)[1]
    if isinstance(model, PreTrainedConfig):
        return _About(Path(model.name_or_path or "").name or model.model_type, model, dtype)
    if isinstance(model, str | os.PathLike):
        config, title = read_config(model)
        return _About(title, config, dtype)
    wanted = "a LanguageModel, a transformers model or config, or a name, directory, .gguf file or hub id"
    raise InvalidInputError("inspect", f"a {type(model).__name__}", wanted)


def _empty(about: _About) -> PreTrainedModel:
    """The architecture with shapes for weights. Raises UnsupportedModelError for one that transformers cannot make."""
    from transformers import AutoModelForCausalLM

    check_decoder(about.config, about.name)
    config = copy.deepcopy(about.config)  # attaching changes it
    try:
        with torch.device("meta"):
            made: PreTrainedModel = about.made(config) if about.made else AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        wanted = "a causal language model whose code is in transformers"
        raise UnsupportedModelError(f"load {about.name}", error, wanted) from error
    made.train(False)
    made.tie_weights()
    return made.bfloat16()  # on the meta device, experts are multiplied in no other dtype


def _tried(model: PreTrainedModel, cache: SelectiveCache) -> tuple[Shapes, str | None]:
    """The shapes that reach each layer's attention in a forward pass, and a note if it could not be finished.

    Raises the UnsupportedModelError of the code that decodes.
    """
    shapes: Shapes = {}

    def note(layer: int, queries: Tensor, keys: Tensor, *rest: Any) -> None:
        shapes[layer] = (queries.shape[1], keys.shape[1], keys.shape[3])

    tokens = torch.zeros((1, TRIED_TOKENS), dtype=torch.int64, device="meta")
    try:
        with attention_observer(model, note):
            model(tokens, past_key_values=cache, use_cache=True)
    except KVVizError:
        raise
    except Exception as error:  # an operation that the meta device lacks: the layers are known all the same
        return shapes, f"Not tried: the model does not run without weights ({type(error).__name__})."
    lost = [layer.context.index for layer in cache.selective_layers if layer.context.index not in shapes]
    if lost:
        got = f"{type(model).__name__}, whose layers {lost} do not use it"
        raise UnsupportedModelError("attention", got, "layers that call transformers' AttentionInterface")
    return shapes, None


def _layer(
    index: int, cache: SelectiveCache, shapes: Shapes, complete: bool, geometry: Geometry, method: Method | None
) -> InspectedLayer:
    layer = cache.layers[index]
    expected = (geometry.n_heads, geometry.n_kv_heads, geometry.head_dim) if isinstance(layer, DynamicLayer) else NONE
    heads = shapes.get(index, NONE if complete else expected)
    reason = _reason(layer, heads != NONE)
    if isinstance(layer, SelectiveLayer) and method is not None and method.is_dense(index):
        reason = f"{method.name} attends to all tokens here"
    window = layer.sliding_window - 1 if hasattr(layer, "sliding_window") else None  # a step adds its own token
    cached = type(layer).__name__ != "DummyLayer"
    return InspectedLayer(index, not reason, reason, *heads, window=window, cached=cached)


def _reason(layer: Any, attends: bool) -> str:
    """Why a layer of the cache stays exact; "" for one that a method serves."""
    if isinstance(layer, SelectiveLayer):
        return ""
    window = getattr(layer, "sliding_window", None)
    if "LinearAttention" in type(layer).__name__:
        beside = f" beside a sliding window of {window:,} tokens" if window else " beside attention"
        return "linear attention" + (beside if isinstance(layer, DynamicLayer) else "")
    if window:
        return f"sliding window of {window:,} tokens"
    if type(layer).__name__ == "DummyLayer":
        return "attends to the keys of an earlier layer" if attends else "no attention"
    if type(layer) is DynamicLayer:
        return "later layers attend to its keys too"
    return f"a cache of its own kind ({type(layer).__name__})"
