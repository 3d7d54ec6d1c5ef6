"""Geometry: the shape of a model's attention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import IncompatibleFileError, UnsupportedModelError
from ..metrics.memory import kv_bytes
from .storage import check_metadata


@dataclass(frozen=True)
class Geometry:
    """Shape of a model's attention: layers, query heads, key/value heads, head dimension, positions.

    `windows` has a number per layer: the tokens of its sliding window, or 0 for a layer that attends to all tokens. It
    is empty for a model without sliding windows. No method serves a layer with a sliding window.
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_positions: int
    windows: tuple[int, ...] = field(default=(), repr=False)

    @classmethod
    def of_config(cls, operation: str, config: Any) -> Geometry:
        """The geometry of a transformers model, from its text config (`model.config.get_text_config()`).

        Raises UnsupportedModelError, which names `operation`, for a config without attention heads or positions, and
        for one whose layers have different head dimensions or numbers of heads.
        """
        _check_alike(operation, config)
        heads: int | None = getattr(config, "num_attention_heads", None)
        positions: int | None = getattr(config, "max_position_embeddings", None)
        if not heads or not positions:
            lacks = "attention layer" if not heads else "number of positions (max_position_embeddings)"
            got = f"a {config.model_type} model, which has no {lacks}"
            raise UnsupportedModelError(operation, got, "a decoder with attention layers and positions")
        return cls(
            n_layers=config.num_hidden_layers,
            n_heads=heads,
            n_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            max_positions=positions,
            windows=_windows(config),
        )

    @property
    def full_layers(self) -> tuple[int, ...]:
        """The layers that attend to all tokens: those without a sliding window."""
        return tuple(layer for layer in range(self.n_layers) if not self.window(layer))

    def window(self, layer: int) -> int:
        """The tokens of a layer's sliding window; 0 if the layer attends to all tokens."""
        return self.windows[layer] if self.windows else 0

    def kv_bytes(
        self, length: ArrayLike, batch: ArrayLike = 1, bytes_per_value: int = 2
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of the KV cache in the layers that attend to all tokens, and in those with a sliding window.

        As `kvviz.metrics.kv_bytes`; a window of W holds the last W - 1 tokens between two steps, as in transformers.
        """
        lengths = np.asarray(length)
        parts = []
        for layers in (self.full_layers, [layer for layer in range(self.n_layers) if self.window(layer)]):
            total = np.zeros(np.broadcast_shapes(lengths.shape, np.shape(batch)), np.int64)
            for window in {self.window(layer) for layer in layers}:
                count = sum(self.window(layer) == window for layer in layers)
                held = np.minimum(lengths, window - 1) if window else lengths
                total = total + kv_bytes(count, self.n_kv_heads, self.head_dim, held, batch, bytes_per_value)
            parts.append(total)
        return parts[0], parts[1]

    def layer_text(self, layer: int) -> str:
        """A layer's name in menus: its number, and what it attends to if that is not all tokens."""
        return ", ".join(part for part in (f"layer {layer}", self.window_text(layer)) if part)

    def window_text(self, layer: int) -> str:
        """What a layer with a sliding window attends to; "" for one that attends to all tokens."""
        window = self.window(layer)
        return f"sliding window of {window:,}: attends to its window only" if window else ""

    def governed_text(self, dense: int = 0) -> str:
        """With sliding windows, in how many layers a budget holds, `dense` ones left out: " in 3 of 18 layers"."""
        return f" in {len(self.full_layers) - dense} of {self.n_layers} layers" if self.windows else ""

    def windows_text(self) -> str:
        """A sentence on the layers with a sliding window; "" without any."""
        sizes = sorted({window for window in self.windows if window})
        if not sizes:
            return ""
        numbers = _ranges([layer for layer in range(self.n_layers) if self.window(layer)])
        of = " or ".join(f"{size:,}" for size in sizes)
        return (
            f"Layers {numbers} have a sliding window of {of}: each attends to its window only, and no method serves it."
        )

    def metadata(self) -> dict[str, Any]:
        """The fields as JSON can hold them, without windows if there are none: as files had them before."""
        counts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "windows"}
        return counts | ({"windows": list(self.windows)} if self.windows else {})

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.n_heads // self.n_kv_heads


def _check_alike(operation: str, config: Any) -> None:
    """Raise UnsupportedModelError for a config that gives single layers another shape (Gemma 4)."""
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        sizes: set[Any] = {getattr(layer, name, None) for layer in getattr(config, "per_layer_config", None) or ()}
        if len(sizes) > 1:
            got = f"a {config.model_type} model, whose layers differ in {name} ({', '.join(map(str, sorted(sizes)))})"
            raise UnsupportedModelError(operation, got, "layers of one shape")


def load_geometry(metadata: dict[str, Any], path: object) -> Geometry:
    """The geometry in the metadata of the file at `path`. Raises IncompatibleFileError if it is impossible."""
    counts = {item.name: "integer" for item in fields(Geometry) if item.name != "windows"}
    check_metadata(metadata, f"read {path}: geometry", counts, {"windows": "integers"})
    windows = metadata.get("windows", [])
    wrong = windows and (len(windows) != metadata["n_layers"] or min(windows) < 0)
    if wrong or min(metadata[name] for name in counts) < 1 or metadata["n_heads"] % metadata["n_kv_heads"]:
        wanted = "numbers above 0, n_heads a multiple of n_kv_heads, one window per layer"
        raise IncompatibleFileError(f"read {path}: geometry", metadata, wanted)
    return Geometry(**(metadata | {"windows": tuple(windows)}))


def check_layers(name: str, layers: Iterable[int], geometry: Geometry) -> None:
    """Raise IncompatibleFileError for layers outside the model."""
    missing = [layer for layer in layers if not 0 <= layer < geometry.n_layers]
    if missing:
        raise IncompatibleFileError(f"{name}: layers", missing, f"0 to {geometry.n_layers - 1}")


def _windows(config: Any) -> tuple[int, ...]:
    """The sliding window of each layer, from the model's config; () if no layer has one."""
    kinds: list[str] | None = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None) or 0
    kinds = kinds or ["sliding_attention"] * config.num_hidden_layers
    windows = tuple(size if kind == "sliding_attention" else 0 for kind in kinds)
    return windows if any(windows) else ()


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, runs as "0 to 4"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in runs)
