"""KIVI: keys in 2 bits per channel, values in 2 bits per token; the newest tokens stay in full precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..errors import InvalidInputError
from ..offload.codec import Codec, Encoded, pack_channels, unpack_channels
from .fields import whole
from .quantised import Quantised


@dataclass
class Kivi(Quantised):
    """Uniform quantisation of keys and values, whose axes differ.

    Source: KIVI (arXiv 2402.02750), section 3 and algorithm 1. A group of numbers shares a minimum and a scale, the
    range divided by 2^bits - 1; a number's code is its rounded distance from the minimum. Keys have channels with large
    numbers, so that `group_size` successive tokens of one channel make a group; values have none, and `group_size`
    channels of one token make one. The newest tokens stay in full precision: of the values the last `residual`; of the
    keys those after the last whole `residual` tokens, which are encoded together. `key_bits` and `value_bits`: bits per
    number, 2 in the paper, and 4 in its comparison.

    Minima and scales are float16, as in the paper's half-precision models: with groups of 32, 2 bits are 3 bits per
    number in all. Generated tokens are within the budget as the wrapped method says; alone, all tokens are attended to.

    Measured on SmolLM2-135M, layer 14, 2,048 tokens of prose, attending to all: mean relative output error 0.32 at 2
    bits, 0.06 at 4 bits.

    Preset "official": 32 tokens in full precision, as in the published example.

    Deviations: codes of one token lie next to each other, also those of keys, so that single tokens can be read. If the
    head dimension is no multiple of `group_size`, the last group of channels is smaller. A group of equal numbers gets
    code 0; the published code divides by 0 there.
    """

    name = "kivi"
    title = "KIVI"
    paper = "arXiv 2402.02750"
    presets = {"paper": {}, "official": {"residual": 32}}
    builds_for_any_budget = True

    key_bits: int = whole(2, 1, 8)
    value_bits: int = whole(2, 1, 8)
    group_size: int = whole(32, 1)
    residual: int = whole(128, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.residual % self.group_size:
            wanted = f"a multiple of group_size, {self.group_size}"
            raise InvalidInputError(f"{self.name}: residual", self.residual, wanted)

    def codecs(self) -> tuple[Codec, Codec]:
        """Keys by channel, values by token."""
        return (
            ChannelCodec(self.key_bits, self.group_size, self.residual),
            TokenCodec(self.value_bits, self.group_size, self.residual),
        )


class ChannelCodec(Codec):
    """Groups of successive tokens in each channel. `residual` tokens, a multiple of `group`, are encoded at once."""

    def __init__(self, bits: int, group: int, residual: int) -> None:
        self.bits, self.group, self.residual = bits, group, residual

    def due(self, exact: int) -> int:
        """All but the remainder by `residual`."""
        return exact // self.residual * self.residual

    def encode(self, tokens: Tensor, fitted: tuple[Tensor, ...]) -> Encoded:
        """Codes of each token, and scales and minima [B, H, n / group, D] of each group."""
        grouped = tokens.float().unflatten(2, (-1, self.group))  # [B, H, n / group, group, D]
        scale, low = _scale_and_minimum(grouped, 3, self.bits)
        codes = _codes(grouped, scale.unsqueeze(3), low.unsqueeze(3), self.bits)
        return Encoded((pack_channels(codes.flatten(2, 3), self.bits),), (scale, low))

    def decode(self, encoded: Encoded, fitted: tuple[Tensor, ...]) -> Tensor:
        """Codes times scale plus minimum."""
        scale, low = encoded.groups
        codes = unpack_channels(encoded.tokens[0], self.bits, scale.shape[-1])
        return codes.float() * scale + low


class TokenCodec(Codec):
    """Groups of `size` successive channels in each token. The last `residual` tokens stay in full precision."""

    def __init__(self, bits: int, size: int, residual: int) -> None:
        self.bits, self.size, self.residual = bits, size, residual
        self._width = 0

    def due(self, exact: int) -> int:
        """All but the last `residual`."""
        return max(exact - self.residual, 0)

    def encode(self, tokens: Tensor, fitted: tuple[Tensor, ...]) -> Encoded:
        """Codes of each token, and its scales and minima [B, H, n, D / size]."""
        self._width = tokens.shape[-1]
        groups = -(-self._width // self.size)
        missing = groups * self.size - self._width
        filled = torch.cat([tokens, tokens[..., -1:].expand(*tokens.shape[:-1], missing)], dim=-1)
        grouped = filled.float().unflatten(-1, (groups, self.size))  # [B, H, n, D / size, size]
        scale, low = _scale_and_minimum(grouped, -1, self.bits)
        codes = _codes(grouped, scale[..., None], low[..., None], self.bits).flatten(-2)[..., : self._width]
        return Encoded((pack_channels(codes, self.bits), scale, low))

    def decode(self, encoded: Encoded, fitted: tuple[Tensor, ...]) -> Tensor:
        """Codes times scale plus minimum."""
        packed, scale, low = encoded.tokens
        codes = unpack_channels(packed, self.bits, self._width)
        missing = scale.shape[-1] * self.size - self._width
        grouped = pad(codes, (0, missing)).float().unflatten(-1, (-1, self.size))
        decoded: Tensor = (grouped * scale[..., None] + low[..., None]).flatten(-2)
        return decoded[..., : self._width]


def _scale_and_minimum(grouped: Tensor, dim: int, bits: int) -> tuple[Tensor, Tensor]:
    """The float16 scale and minimum of each group, along `dim`."""
    low, high = grouped.amin(dim), grouped.amax(dim)
    largest = torch.finfo(torch.float16).max
    scale = ((high - low) / (2**bits - 1)).clamp(max=largest).half()
    return scale, low.clamp(min=-largest, max=largest).half()


def _codes(grouped: Tensor, scale: Tensor, low: Tensor, bits: int) -> Tensor:
    """Codes uint8 of the numbers: 0 in a group whose scale is 0."""
    steps = (grouped - low.float()) / scale.float()
    return steps.nan_to_num_(0.0, 0.0, 0.0).clamp_(0, 2**bits - 1).round_().to(torch.uint8)
