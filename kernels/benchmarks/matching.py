"""soft_match against what a user would write: normalised products in torch, or one similarity matrix of all tokens."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from kvviz_kernels import soft_match
from kvviz_kernels.matching import link_sources
from timing import Call, Row, alternate, forms, row_of, waiting
from torch import Tensor
from torch.nn.functional import normalize

CHUNK = 256
WHOLE = 16_384  # maximum number of tokens for one similarity matrix, which grows with their square


def plain(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Matching by normalised keys, one batched product over the chunks, and torch.max."""
    chunks = normalize(keys.float(), dim=-1).unflatten(-2, (-1, CHUNK))
    similarity, place = (chunks[..., 0::2, :] @ chunks[..., 1::2, :].mT).max(-1)
    first = torch.arange(0, keys.shape[-2], CHUNK, device=keys.device)[:, None]
    return (first + 2 * place + 1).flatten(-2), similarity.flatten(-2)


def cdist(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Matching by torch.cdist of normalised keys: the nearest unit vector has the largest cosine."""
    chunks = normalize(keys.float(), dim=-1).unflatten(-2, (-1, CHUNK))
    distance, place = torch.cdist(chunks[..., 0::2, :], chunks[..., 1::2, :]).min(-1)
    first = torch.arange(0, keys.shape[-2], CHUNK, device=keys.device)[:, None]
    return (first + 2 * place + 1).flatten(-2), (1 - distance.square() / 2).flatten(-2)


def whole_matrix(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Matching by the similarities of all A tokens with all B tokens, head by head, with other chunks masked."""
    unit = normalize(keys.float(), dim=-1)
    chunk = torch.arange(keys.shape[-2], device=keys.device) // CHUNK
    other_chunk = chunk[0::2, None] != chunk[None, 1::2]
    heads = unit.flatten(0, -3)
    best = [(head[0::2] @ head[1::2].T).masked_fill_(other_chunk, -torch.inf).max(-1) for head in heads]
    partners, similarities = torch.stack([2 * place + 1 for _, place in best]), torch.stack([top for top, _ in best])
    return partners.view(*keys.shape[:-2], -1), similarities.view(*keys.shape[:-2], -1)


def check(device: torch.device) -> None:
    """Assert that all implementations find links with the same, largest similarity."""
    keys = torch.randn(2, 2, 1024, 64, generator=torch.Generator().manual_seed(0)).to(device)
    unit = normalize(keys.double(), dim=-1)
    sources = link_sources(1024, CHUNK, device)
    expected = soft_match(keys, CHUNK, impl="naive")[1]
    for name, run in _calls(keys).items():
        partners, similarities = run()
        exact = (unit[..., sources, :] * unit.gather(-2, partners[..., None].expand(-1, -1, -1, 64))).sum(-1)
        torch.testing.assert_close(exact.float(), expected, rtol=0, atol=1e-5, msg=name)
        torch.testing.assert_close(similarities, expected, rtol=0, atol=1e-4, msg=name)  # cdist squares and takes roots


def rows(device: torch.device) -> list[Row]:
    """One row per size, in milliseconds."""
    return [_row(*size, device) for size in _sizes(device)]


def _sizes(device: torch.device) -> Iterator[tuple[int, int, int, int]]:
    """Batch, KV heads, tokens, width."""
    if device.type == "cpu":
        yield 1, 3, 8192, 64
        return
    for batch in (1, 8):
        for tokens in (8192, 32_768, 131_072):
            yield batch, 8, tokens, 128


def _calls(keys: Tensor) -> dict[str, Call]:
    match = partial(soft_match, keys, CHUNK)
    calls: dict[str, Call] = {impl: partial(match, impl=impl) for impl in forms(keys.device)}
    calls |= {"torch": partial(plain, keys), "cdist": partial(cdist, keys)}
    return calls | ({"whole_matrix": partial(whole_matrix, keys)} if keys.shape[-2] <= WHOLE else {})


def _row(batch: int, heads: int, tokens: int, width: int, device: torch.device) -> Row:
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    keys = torch.randn(batch, heads, tokens, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    name = f"soft_match, {batch} x {heads} heads x {tokens} tokens x {width}, chunks of {CHUNK}"
    return row_of(name, alternate(waiting(_calls(keys), device)), forms(device)[-1], unit="ms")
