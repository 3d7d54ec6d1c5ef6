"""The matching kernel, naive and fused, against loops over tokens in float64 and a full similarity matrix."""

from __future__ import annotations

import itertools
import os

import kvviz_kernels
import numpy as np
import pytest
import torch
from kvviz_kernels import soft_match
from kvviz_kernels.matching import count_links, link_sources, naive

from tests.kernels.kernel_cases import each_impl, normal


def by_loops(keys: torch.Tensor, chunk_size: int | None) -> tuple[list[int], list[int], list[float]]:
    """Sources, partners and similarities of one head, token by token."""
    unit = keys.double().cpu().numpy()
    norms = np.linalg.norm(unit, axis=-1, keepdims=True)
    unit = unit / np.where(norms > 0, norms, 1)
    size = chunk_size or len(unit)
    sources, partners, similarities = [], [], []
    for start in range(0, len(unit), size):
        chunk = range(start, min(start + size, len(unit)))
        for a in chunk[0::2] if len(chunk) > 1 else ():
            cosines = unit[chunk[1::2]] @ unit[a]
            sources.append(a)
            partners.append(chunk[1::2][int(np.argmax(cosines))])  # ties go to the first
            similarities.append(cosines.max())
    return sources, partners, similarities


def check(keys: torch.Tensor, chunk_size: int | None, impl: str) -> None:
    partners, similarities = soft_match(keys, chunk_size, impl=impl)
    sources = link_sources(keys.shape[-2], chunk_size, keys.device)
    assert (partners.dtype, similarities.dtype, sources.dtype) == (torch.int64, torch.float32, torch.int64)
    assert partners.shape == similarities.shape == (*keys.shape[:-2], count_links(keys.shape[-2], chunk_size))
    for head in np.ndindex(*keys.shape[:-2]):
        expected = by_loops(keys[head], chunk_size)
        assert sources.tolist() == expected[0]
        assert partners[head].tolist() == expected[1]
        assert similarities[head].tolist() == pytest.approx(expected[2], abs=1e-6)


LONG = [pytest.param(1000, chunk_size, marks=pytest.mark.slow) for chunk_size in (64, 101, 256, None)]


@each_impl
@pytest.mark.parametrize(
    ("length", "chunk_size"),
    [*itertools.product([1, 2, 63, 100], [2, 3, 64, 99, None]), *LONG],
)
def test_partners_agree_with_loops(length, chunk_size, impl, device):
    check(normal(2, length, 24).to(device), chunk_size, impl)


@each_impl
@pytest.mark.parametrize("kind", ["duplicates", "periodic", "constant", "zeros"])
def test_ties_go_to_the_earlier_token(kind, impl, device):
    """With four entries of ±1, cosines are multiples of 1/4 in any precision, so that ties are exact."""
    rng = np.random.default_rng(0)
    keys = np.zeros((7, 16), np.float32)
    for key in keys:
        key[rng.permutation(16)[:4]] = rng.choice([-1, 1], 4)
    rows = rng.integers(0, 7, 300) if kind == "duplicates" else np.arange(300) % (7 if kind == "periodic" else 1)
    keys = keys[rows] * (kind != "zeros")
    keys[rng.random(300) < 0.1] = 0
    for chunk_size in (33, None):
        check(torch.from_numpy(keys)[None].to(device), chunk_size, impl)


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 80])
def test_half_precision_is_computed_in_float32(width, dtype, impl, device):
    check(normal(2, 3, 150, width).to(device, dtype), 64, impl)


@each_impl
def test_leading_dimensions_and_strides(impl, device):
    keys = normal(2, 90, 3, 16).to(device).transpose(1, 2)
    check(keys, 32, impl)
    check(normal(3, 200, 16).to(device)[:, 10:110], None, impl)
    check(keys[0, 0], 32, impl)
    partners, similarities = soft_match(keys[:0], 32, impl=impl)
    assert partners.shape == similarities.shape == (0, 3, 45)


@each_impl
def test_without_chunks_it_is_the_full_similarity_matrix(impl, device):
    keys = normal(2, 300, 32).to(device)
    unit = torch.nn.functional.normalize(keys, dim=-1)
    similarity, index = (unit[:, 0::2] @ unit[:, 1::2].mT).max(-1)
    partners, similarities = soft_match(keys, None, impl=impl)
    assert torch.equal(partners, 2 * index + 1)
    torch.testing.assert_close(similarities, similarity, rtol=0, atol=1e-6)


def test_the_result_does_not_depend_on_the_blocks(monkeypatch):
    keys = normal(2, 1000, 16)
    for chunk_size in (64, None):
        whole = soft_match(keys, chunk_size, impl="naive")
        for block in (1, 700, 5000):
            monkeypatch.setattr(naive, "BLOCK_SIMILARITIES", block)
            partners, similarities = soft_match(keys, chunk_size, impl="naive")
            assert torch.equal(partners, whole[0])
            torch.testing.assert_close(similarities, whole[1], rtol=0, atol=1e-6)
        monkeypatch.undo()


@pytest.mark.skipif(not kvviz_kernels.has_triton(), reason="Triton is not installed (extra: kernels)")
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="Triton compiles for the GPU here")
def test_all_candidate_configurations_find_the_same_partners():
    from kvviz_kernels.matching import fused

    keys = normal(1, 150, 16)
    expected = soft_match(keys, 101, impl="naive")[0]
    for config in fused.CANDIDATES:
        assert config.keys() == fused.DEFAULT.keys()
        assert torch.equal(fused.soft_match(keys, 101, config=config)[0], expected)


def test_the_number_of_links_at_every_length():
    for length, chunk_size in itertools.product(range(1, 30), [2, 3, 4, 7, 29, 64, None]):
        sources, *_ = by_loops(torch.ones(length, 1), chunk_size)
        assert count_links(length, chunk_size) == len(sources)
        assert link_sources(length, chunk_size, torch.device("cpu")).tolist() == sources


def test_a_chunk_needs_two_tokens():
    with pytest.raises(ValueError, match="soft_match: got chunk_size=1; wanted at least 2"):
        soft_match(torch.ones(4, 2), 1)
