"""The rotary position embedding (RoPE) of each layer, read from a transformers model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..methods.rotation import Rotation, rotate
from .speculation import attention_modules

CHANGING = ("dynamic", "longrope")  # their frequencies depend on the length of the text
ROTATES_ONLY_SLIDING = ("cohere2", "exaone4")  # models whose full layers have no RoPE, if others have a sliding window

_read: WeakKeyDictionary[PreTrainedModel, Mapping[int, Rotation]] = WeakKeyDictionary()


def rotations(model: PreTrainedModel) -> Mapping[int, Rotation]:
    """The RoPE of each layer of a model; layers of which it cannot be known are missing.

    They are read once per model. Frequencies and scaling are the buffers of the decoder's `rotary_emb` (in some models
    one set per layer type); the layout is whichever gives what the model's own `apply_rotary_pos_emb` gives. Models
    with learned positions, another function, or frequencies that depend on the length (dynamic NTK, LongRoPE) have no
    entries. A layer that skips RoPE has a rotation without frequencies.
    """
    if model not in _read:
        _read[model] = _rotations(model)
    return _read[model]


def _rotations(model: PreTrainedModel) -> dict[int, Rotation]:
    config = model.config.get_text_config(decoder=True)
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    try:
        modules = attention_modules("rotation", model)
    except UnsupportedModelError:
        modules = []
    if rotary is None:
        return {}
    types: list[str] = getattr(config, "layer_types", None) or []
    by_type: dict[str, Rotation | None] = {}
    found = {}
    for module in modules:
        layer = int(module.layer_idx)  # type: ignore[arg-type]  # checked in attention_modules
        kind = types[layer] if layer < len(types) else ""
        if _skips(module, config, kind, types):
            found[layer] = Rotation(())
            continue
        if kind not in by_type:
            by_type[kind] = _of_type(rotary, module, kind)
        if (rotation := by_type[kind]) is not None:
            found[layer] = rotation
    return found


def _skips(module: nn.Module, config: Any, kind: str, types: list[str]) -> bool:
    """Whether a layer is known to have no RoPE, though the model has."""
    if not getattr(module, "use_rope", True):  # SmolLM3
        return True
    return config.model_type in ROTATES_ONLY_SLIDING and kind == "full_attention" and "sliding_attention" in types


def _of_type(rotary: Any, module: nn.Module, kind: str) -> Rotation | None:
    """The rotation of the layers of one type, tried against the model's own function; None if none gives the same."""
    prefix = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
    frequencies = getattr(rotary, f"{prefix}inv_freq", None)
    rope_type = getattr(rotary, "rope_type", "default")
    rope_type = rope_type.get(kind) if isinstance(rope_type, dict) else rope_type
    apply = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if not isinstance(frequencies, Tensor) or rope_type in CHANGING or apply is None:
        return None
    scaling = float(getattr(rotary, f"{prefix}attention_scaling", 1.0))
    positions = torch.arange(1, 4, device=frequencies.device)
    vectors = torch.linspace(-1, 1, 3 * 2 * len(frequencies), device=frequencies.device).view(1, 1, 3, -1)
    try:
        turned = apply(vectors, vectors, *rotary(vectors, positions[None], *([kind] if prefix else [])))[0]
    except (TypeError, ValueError, RuntimeError):  # a function with other arguments
        return None
    values = tuple(frequencies.float().tolist())
    for layout in ("halves", "interleaved"):
        rotation = Rotation(values, layout, scaling)
        ours = rotate(vectors, positions, rotation)
        if ours.shape == turned.shape and torch.allclose(ours, turned.float(), atol=1e-4):
            return rotation
    return None
