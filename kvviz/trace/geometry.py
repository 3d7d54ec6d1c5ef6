"""Geometry: the shape of a model's attention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from ..errors import IncompatibleFileError, UnsupportedModelError
from .storage import check_metadata


@dataclass(frozen=True)
class Geometry:
    """Shape of a model's attention: layers, query heads, key/value heads, head dimension, positions."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_positions: int

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
        )

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
    check_metadata(metadata, f"read {path}: geometry", {item.name: "integer" for item in fields(Geometry)})
    if min(metadata.values()) < 1 or metadata["n_heads"] % metadata["n_kv_heads"]:
        wanted = "numbers above 0, n_heads a multiple of n_kv_heads"
        raise IncompatibleFileError(f"read {path}: geometry", metadata, wanted)
    return Geometry(**metadata)


def check_layers(name: str, layers: Iterable[int], geometry: Geometry) -> None:
    """Raise IncompatibleFileError for layers outside the model."""
    missing = [layer for layer in layers if not 0 <= layer < geometry.n_layers]
    if missing:
        raise IncompatibleFileError(f"{name}: layers", missing, f"0 to {geometry.n_layers - 1}")
