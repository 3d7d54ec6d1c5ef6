"""Rotation: the rotary position embedding (RoPE) of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..errors import IncompatibleFileError, InvalidInputError
from .storage import check_metadata

Layout = Literal["halves", "interleaved"]


@dataclass(frozen=True)
class Rotation:
    """The rotary position embedding (RoPE) of one layer: at position p, pair i of a vector turns by p · frequencies[i].

    The first `dim` channels of a head are turned, the rest are not. `layout` says which two of them are a pair:
    "halves" (i and i + dim / 2, as in Llama) or "interleaved" (2i and 2i + 1, as in GLM). The turned channels are
    multiplied by `scaling`, 1 unless the model extends its positions (YaRN). Without frequencies the layer has no RoPE.
    Source: RoFormer (arXiv 2104.09864), section 3.2. `kvviz.methods.rotation` turns tensors.
    """

    frequencies: tuple[float, ...]
    layout: Layout = "halves"
    scaling: float = 1.0

    def __post_init__(self) -> None:
        if self.layout not in get_args(Layout):
            raise InvalidInputError("rotation: layout", self.layout, f"one of {', '.join(get_args(Layout))}")
        if self.scaling <= 0:
            raise InvalidInputError("rotation: scaling", self.scaling, "a number above 0")

    @property
    def dim(self) -> int:
        """The number of channels that are turned."""
        return 2 * len(self.frequencies)


def to_metadata(rotations: Mapping[int, Rotation]) -> list[dict[str, Any]]:
    """Rotations by layer as plain data: one object per distinct rotation, with its layers."""
    layers: dict[Rotation, list[int]] = {}
    for layer, rotation in sorted(rotations.items()):
        layers.setdefault(rotation, []).append(layer)
    return [
        {"layers": list(of), "layout": one.layout, "scaling": one.scaling, "frequencies": list(one.frequencies)}
        for one, of in layers.items()
    ]


def from_metadata(objects: list[dict[str, Any]], path: object) -> dict[int, Rotation]:
    """Rotations by layer from `to_metadata`. Raises IncompatibleFileError if the file at `path` has impossible ones."""
    rotations: dict[int, Rotation] = {}
    operation = f"read {path}: rotations"
    for entry in objects:
        kinds = {"layers": "integers", "layout": "text", "scaling": "factor", "frequencies": "numbers"}
        check_metadata(entry, operation, kinds)
        if entry["layout"] not in get_args(Layout) or entry["scaling"] is None:
            wanted = f"a layout of {', '.join(get_args(Layout))}, and a scaling"
            raise IncompatibleFileError(operation, f"{entry['layout']}, {entry['scaling']}", wanted)
        rotation = Rotation(tuple(entry["frequencies"]), entry["layout"], entry["scaling"])
        rotations |= dict.fromkeys(entry["layers"], rotation)
    return rotations
