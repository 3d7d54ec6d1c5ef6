"""Kernels against brute force in float64, torch's own attention, and each other."""

from __future__ import annotations

import logging
import math
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
import kvviz_kernels
from kvviz_kernels import gather_attention, kmeans_assign, kmeans_update

DEVICES = ["cpu", pytest.param("cuda", marks=[
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")])]  # fmt: skip
LENGTHS = (1, 63, 100, 1000)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
each_impl = pytest.mark.parametrize("impl", ["naive", "fused"], indirect=True)
each_device = pytest.mark.parametrize("device", DEVICES)


@pytest.fixture
def impl(request: pytest.FixtureRequest, device: str) -> str:
    if request.param == "fused" and not kvviz_kernels.has_triton():
        pytest.skip("Triton is not installed (extra: kernels)")
    if request.param == "fused" and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles for the GPU here; its interpreter is for machines without one")
    return str(request.param)


def normal(*shape: int, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def attention_inputs(batch, heads, kv_heads, length, width, device):
    shapes = (batch, heads, width), (batch, kv_heads, length, width), (batch, kv_heads, length, width)
    return tuple(normal(*shape, seed=seed, device=device) for seed, shape in enumerate(shapes))


def choose(batch: int, rows: int, capacity: int, slots: int, seed: int = 1) -> torch.Tensor:
    """Distinct positions for every row, ascending."""
    generator = torch.Generator().manual_seed(seed)
    picks = [torch.randperm(capacity, generator=generator)[:slots].sort().values for _ in range(batch * rows)]
    return torch.stack(picks).view(batch, rows, slots)


def brute_force(queries, keys, values, indices, *, scale, bias=None, softcap=None):
    """Softmax in float64, one query head after the other, over the positions that are not pads."""
    batch, heads, _ = queries.shape
    output = torch.zeros(queries.shape, dtype=torch.float64)
    lse = torch.full((batch, heads), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for q in range(heads):
            row, head = q * indices.shape[1] // heads, q * keys.shape[1] // heads
            real = indices[b, row] >= 0
            places = indices[b, row][real].cpu()
            logits = keys[b, head].cpu().double()[places] @ queries[b, q].cpu().double() * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            if bias is not None:
                logits = logits + bias[b, row][real].cpu().double()
            if len(logits) and logits.max() > -math.inf:
                output[b, q] = logits.softmax(0) @ values[b, head].cpu().double()[places]
                lse[b, q] = logits.logsumexp(0)
    return output, lse


def check(queries, keys, values, indices, impl, **options):
    output, lse = gather_attention(queries, keys, values, indices, impl=impl, **options)
    options.pop("padded", None)
    wanted_output, wanted_lse = brute_force(queries, keys, values, indices, **options)
    assert output.dtype == queries.dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close(output.cpu().double(), wanted_output, **TOLERANCE)
    torch.testing.assert_close(lse.cpu().double(), wanted_lse, **TOLERANCE)
    return output


@each_device
@each_impl
@pytest.mark.parametrize("slots", LENGTHS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (8, 1)], ids=["MHA", "GQA", "MQA"])
def test_attention_at_odd_lengths_and_every_ratio(slots, heads, kv_heads, impl, device):
    queries, keys, values = attention_inputs(2, heads, kv_heads, 1003, 24, device)
    indices = choose(2, kv_heads, 1003, slots).to(device)
    check(queries, keys, values, indices, impl, scale=24**-0.5, padded=False)


@each_device
@each_impl
def test_attention_over_everything_is_torch_attention(impl, device):
    queries, keys, values = attention_inputs(2, 8, 2, 100, 64, device)
    everything = torch.arange(100, device=device).expand(2, 2, 100)
    output, _ = gather_attention(queries, keys, values, everything, scale=0.125, impl=impl)
    full = torch.nn.functional.scaled_dot_product_attention
    wanted = full(queries[:, :, None], keys, values, scale=0.125, enable_gqa=True)
    torch.testing.assert_close(output, wanted[:, :, 0], **TOLERANCE)


@each_device
@each_impl
@pytest.mark.parametrize("group", ["shared", "each"])
def test_attention_with_pads_bias_and_softcap(group, impl, device):
    rows = {"shared": 2, "each": 6}[group]
    queries, keys, values = attention_inputs(2, 6, 2, 150, 20, device)
    indices = choose(2, rows, 150, 71)
    indices[:, :, [0, 5, 40, 70]] = -1  # anywhere, both ends included
    indices[0, 1, 3:] = -1
    bias = normal(2, rows, 71, seed=3) * 2
    bias[1, 0, 1:30] = -math.inf
    check(queries * 4, keys, values, indices.to(device), impl, scale=0.3, bias=bias.to(device), softcap=5.0)


@each_device
@each_impl
def test_rows_without_tokens_give_zero_and_pads_are_never_read(impl, device):
    queries, keys, values = attention_inputs(1, 6, 3, 80, 16, device)
    keys[:, :, 0], values[:, :, 0] = math.nan, math.nan  # where a careless gather of -1 would look
    keys[:, :, -1], values[:, :, -1] = math.nan, math.nan
    indices = 1 + choose(1, 3, 78, 70).to(device)
    indices[0, 0] = -1
    bias = torch.zeros(1, 3, 70, device=device)
    bias[0, 1] = -math.inf
    indices[0, 2, 65:] = -1
    for options in ({}, {"bias": bias}):
        output = check(queries, keys, values, indices, impl, scale=0.25, **options)
        assert (output[:, :2] == 0).all()
    output, lse = gather_attention(queries, keys, values, indices[:, :, :0], scale=0.25, impl=impl)
    assert (output == 0).all()
    assert (lse == -math.inf).all()


@each_device
@each_impl
@pytest.mark.parametrize("layout", ["capacity", "tokens first", "odd strides"])
def test_attention_reads_any_strides(layout, impl, device):
    if layout == "capacity":  # a longer buffer that starts inside another tensor
        buffers = normal(2, 2, 3, 200, 16, seed=1, device=device)[:, 1:, :, 10:110]
    elif layout == "tokens first":
        buffers = normal(2, 1, 100, 3, 16, seed=1, device=device).transpose(2, 3)
    else:
        buffers = normal(2, 1, 3, 16, 100, seed=1, device=device).transpose(3, 4)
    assert not buffers.is_contiguous()
    keys, values = buffers[:, 0], buffers[:, 0] * 2
    check(normal(2, 6, 16, device=device), keys, values, choose(2, 3, 100, 37).to(device), impl, scale=0.25)


@each_device
@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_of_half_precision_is_computed_in_float32(dtype, impl, device):
    queries, keys, values = (tensor.to(dtype) for tensor in attention_inputs(1, 4, 2, 90, 32, device))
    indices = choose(1, 2, 90, 63).to(device)
    output, lse = gather_attention(queries, keys, values, indices, scale=0.2, impl=impl)
    wanted_output, wanted_lse = brute_force(queries, keys, values, indices, scale=0.2)
    torch.testing.assert_close(lse.cpu().double(), wanted_lse, **TOLERANCE)
    one_rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(output.cpu(), wanted_output.to(dtype), rtol=one_rounding, atol=1e-5)


def nearest(keys: torch.Tensor, centroids: torch.Tensor, metric: str) -> torch.Tensor:
    keys, centroids = keys.cpu().double()[..., :, None, :], centroids.cpu().double()[..., None, :, :]  # [..., L, C, D]
    if metric == "l2":
        return (keys - centroids).square().sum(-1).argmin(-1)
    scores = (keys * centroids).sum(-1)
    return (scores / (keys.norm(dim=-1) * centroids.norm(dim=-1)) if metric == "cosine" else scores).argmax(-1)


@each_device
@each_impl
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("length", LENGTHS)
def test_assignment_is_the_nearest_centroid(length, metric, impl, device):
    keys, centroids = normal(2, 2, length, 20, device=device), normal(2, 2, 67, 20, seed=1, device=device)
    labels = kmeans_assign(keys, centroids, metric=metric, impl=impl)
    assert labels.dtype == torch.int64
    assert torch.equal(labels.cpu(), nearest(keys, centroids, metric))


@each_device
@each_impl
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_ties_go_to_the_lowest_label(metric, impl, device):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-2, 3, (2, 130, 8), generator=generator).float().to(device)  # small integers: sums are exact
    keys[..., 0] = 1  # no key of zeros
    corners = torch.randint(0, 2, (2, 70, 4), generator=generator).float() * 2 - 1
    centroids = torch.nn.functional.pad(corners, (2, 2)).to(device)  # norm 2, at most 16 different ones
    labels = kmeans_assign(keys, centroids, metric=metric, impl=impl)
    assert torch.equal(labels.cpu(), nearest(keys, centroids, metric))
    if metric != "l2":
        assert (kmeans_assign(keys * 0, centroids, metric=metric, impl=impl) == 0).all()


def test_assignment_in_several_chunks_is_the_same(monkeypatch):
    keys, centroids = normal(1, 1000, 16), normal(1, 30, 16, seed=1)
    whole = kmeans_assign(keys, centroids, metric="l2", impl="naive")
    monkeypatch.setattr(kvviz_kernels.kmeans.naive, "CHUNK_SCORES", 30 * 128)
    assert torch.equal(kmeans_assign(keys, centroids, metric="l2", impl="naive"), whole)


@each_device
@each_impl
@pytest.mark.parametrize("length", LENGTHS)
def test_update_sums_every_cluster(length, impl, device):
    keys = normal(2, 2, length, 20, device=device)
    labels = torch.randint(9, (2, 2, length), generator=torch.Generator().manual_seed(1)).to(device)
    sums, sizes = kmeans_update(keys, labels, 11, impl=impl)  # clusters 9 and 10 are empty
    one_hot = torch.nn.functional.one_hot(labels, 11)
    assert torch.equal(sizes, one_hot.sum(-2))
    torch.testing.assert_close(sums.double(), one_hot.double().transpose(-1, -2) @ keys.double(), **TOLERANCE)
    assert (sums[..., 9:, :] == 0).all()


@each_device
@each_impl
def test_half_precision_keys_are_clustered_in_float32(impl, device):
    keys, centroids = normal(2, 100, 24, device=device).half(), normal(2, 10, 24, seed=1, device=device)
    labels = kmeans_assign(keys, centroids, metric="cosine", impl=impl)
    assert torch.equal(labels.cpu(), nearest(keys, centroids, "cosine"))
    sums, _ = kmeans_update(keys, labels, 10, impl=impl)
    wanted = torch.nn.functional.one_hot(labels, 10).double().transpose(-1, -2) @ keys.double()
    torch.testing.assert_close(sums.double(), wanted, **TOLERANCE)


def test_bad_arguments_say_what_was_wanted(monkeypatch):
    keys = normal(1, 3, 10, 16)
    with pytest.raises(ValueError, match="got impl='fast'; wanted 'auto', 'naive' or 'fused'"):
        kmeans_assign(keys, keys, impl="fast")
    with pytest.raises(ValueError, match="got metric='dot'; wanted one of cosine, ip, l2"):
        kmeans_assign(keys, keys, metric="dot")
    with pytest.raises(ValueError, match=r"got indices for 2 heads; wanted 3 \(key/value\) or 9 \(query\)"):
        gather_attention(normal(1, 9, 16), keys, keys, torch.zeros(1, 2, 4, dtype=torch.int64), scale=1.0)
    with pytest.raises(ValueError, match="got 8 query heads; wanted a multiple of the 3 key/value heads"):
        gather_attention(normal(1, 8, 16), keys, keys, torch.zeros(1, 3, 4, dtype=torch.int64), scale=1.0)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="wanted one on an NVIDIA GPU"):
        kmeans_update(keys, torch.zeros(1, 3, 10, dtype=torch.int64), 1, impl="fused")
    monkeypatch.setattr(kvviz_kernels.dispatch, "has_triton", lambda: False)
    with pytest.raises(ImportError, match="kvviz\\[kernels\\]"):
        kmeans_update(keys, torch.zeros(1, 3, 10, dtype=torch.int64), 1, impl="fused")


def test_auto_logs_once_what_it_took(caplog):
    kvviz_kernels.dispatch._log_once.cache_clear()
    keys = normal(10, 4)
    with caplog.at_level(logging.INFO, "kvviz_kernels"):
        for _ in range(2):
            kmeans_assign(keys, keys)
    assert [record.getMessage() for record in caplog.records] == ["kmeans_assign: naive on cpu"]
