"""RoPE on tensors: keys and queries turned to a position, turned back, and taken apart into their pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trace.rotation import Rotation

__all__ = ["Rotation", "angles", "from_pairs", "pairs", "rotate", "turn", "unrotate"]


def angles(positions: Tensor, rotation: Rotation) -> Tensor:
    """The angle of each pair at each position: float32 [..., dim / 2] from positions [...]."""
    frequencies = torch.tensor(rotation.frequencies, dtype=torch.float32, device=positions.device)
    return positions[..., None].float() * frequencies


def pairs(vectors: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """The first and the second number of each pair, float32 [..., dim / 2] each, like real and imaginary parts."""
    turned = vectors[..., : rotation.dim].float()
    if rotation.layout == "halves":
        first, second = turned.chunk(2, dim=-1) if rotation.dim else (turned, turned)
        return first, second
    return turned[..., 0::2], turned[..., 1::2]


def from_pairs(first: Tensor, second: Tensor, rest: Tensor, rotation: Rotation) -> Tensor:
    """Vectors [..., D] from the numbers of each pair [..., dim / 2] and the channels [..., D - dim] without RoPE."""
    halves = rotation.layout == "halves"
    turned = torch.cat([first, second], dim=-1) if halves else torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([turned, rest.float()], dim=-1)


def turn(vectors: Tensor, cos: Tensor, sin: Tensor, rotation: Rotation) -> Tensor:
    """Vectors [..., D] with pair i multiplied by the complex number cos[i] + sin[i]·j, float32; [..., dim / 2] each."""
    first, second = pairs(vectors, rotation)
    rest = vectors[..., rotation.dim :]
    return from_pairs(first * cos - second * sin, second * cos + first * sin, rest, rotation)


def rotate(vectors: Tensor, positions: Tensor, rotation: Rotation) -> Tensor:
    """Vectors [..., D] before RoPE as they are after it at `positions` [...], float32.

    `positions` broadcast over the leading dimensions: [L] for keys [B, H, L, D].
    """
    angle = angles(positions, rotation)
    return turn(vectors, angle.cos() * rotation.scaling, angle.sin() * rotation.scaling, rotation)


def unrotate(vectors: Tensor, positions: Tensor, rotation: Rotation) -> Tensor:
    """Vectors [..., D] after RoPE at `positions` [...] as they were before it, float32: the inverse of `rotate`."""
    angle = angles(positions, rotation)
    return turn(vectors, angle.cos() / rotation.scaling, -angle.sin() / rotation.scaling, rotation)
