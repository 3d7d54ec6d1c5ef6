"""Packed codes against bits set one by one by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvviz.offload.packing import pack, unpack


def random_codes(bits, tokens, parts):
    drawn = np.random.default_rng(bits * tokens).integers(0, 2**bits, (2, 3, tokens, parts))
    return torch.from_numpy(drawn.astype(np.uint8 if bits <= 8 else np.uint16))


def packed_by_numpy(row, bits):
    """Bytes of the codes of 8 tokens: whole lower bytes first, then the remaining bits, the lowest first."""
    lower = row.astype(np.uint8).tobytes() if bits > 8 else b""
    rest, width = (row >> 8, bits - 8) if bits > 8 else (row, bits)
    stream = [int(code) >> bit & 1 for code in rest for bit in range(width)]
    return lower + np.packbits(np.array(stream, np.uint8), bitorder="little").tobytes()


@pytest.mark.parametrize("bits", range(1, 17))
def test_codes_are_packed_to_their_bits_and_come_back(bits):
    for tokens, parts in [(0, 2), (1, 1), (8, 3), (61, 2), (64, 4)]:
        codes = random_codes(bits, tokens, parts)
        for given in (codes, codes.transpose(0, 1).contiguous().transpose(0, 1), torch.cat([codes, codes])[2:]):
            packed = pack(given, bits)
            rows = -(-tokens // 8)
            assert packed.shape == (2, 3, rows, parts * bits)
            assert packed.dtype == torch.uint8
            unpacked = unpack(packed, bits)
            assert unpacked.dtype == codes.dtype
            assert torch.equal(unpacked[:, :, :tokens], codes)
            assert not unpacked[:, :, tokens:].int().any()
        padded = np.pad(codes.numpy(), ((0, 0), (0, 0), (0, rows * 8 - tokens), (0, 0)))
        for place in np.ndindex(2, 3, rows):
            row = padded[place[0], place[1], place[2] * 8 : place[2] * 8 + 8].ravel()
            assert packed[place].numpy().tobytes() == packed_by_numpy(row, bits)


def test_two_codes_of_6_bits_take_12_bits_per_token():
    packed = pack(random_codes(6, 4096, 2), 6)
    assert packed.numel() * 8 == 2 * 3 * 4096 * 12
