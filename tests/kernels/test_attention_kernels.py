"""Attention over selected tokens against softmax in float64 and torch's own attention."""

from __future__ import annotations

import math

import pytest
import torch
from kvviz_kernels import gather_attention

from tests.kernels.kernel_cases import LENGTHS, TOLERANCE, each_impl, normal

RATIOS = pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (8, 1)], ids=["MHA", "GQA", "MQA"])


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
            logits = keys[b, head].cpu()[places].double() @ queries[b, q].cpu().double() * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            if bias is not None:
                logits = logits + bias[b, row][real].cpu().double()
            if len(logits) and logits.max() > -math.inf:
                output[b, q] = logits.softmax(0) @ values[b, head].cpu()[places].double()
                lse[b, q] = logits.logsumexp(0)
    return output, lse


def agree(found, queries, keys, values, indices, **options):
    """Whether output and log-sum-exp are those of brute force, for float32 inputs."""
    output, lse = found
    wanted_output, wanted_lse = brute_force(queries, keys, values, indices, **options)
    assert output.dtype == queries.dtype
    assert output.shape == queries.shape
    assert lse.dtype == torch.float32
    torch.testing.assert_close(output.cpu().double(), wanted_output, **TOLERANCE)
    torch.testing.assert_close(lse.cpu().double(), wanted_lse, **TOLERANCE)


def check(queries, keys, values, indices, impl, *, padded=True, **options):
    found = gather_attention(queries, keys, values, indices, impl=impl, padded=padded, **options)
    agree(found, queries, keys, values, indices, **options)
    return found[0]


@each_impl
@pytest.mark.parametrize("slots", LENGTHS)
@RATIOS
def test_attention_at_odd_lengths_and_every_ratio(slots, heads, kv_heads, impl, device):
    queries, keys, values = attention_inputs(2, heads, kv_heads, 1003, 24, device)
    indices = choose(2, kv_heads, 1003, slots).to(device)
    check(queries, keys, values, indices, impl, scale=24**-0.5, padded=False)


@each_impl
def test_attention_over_everything_is_torch_attention(impl, device):
    queries, keys, values = attention_inputs(2, 8, 2, 100, 64, device)
    everything = torch.arange(100, device=device).expand(2, 2, 100)
    output, _ = gather_attention(queries, keys, values, everything, scale=0.125, impl=impl)
    full = torch.nn.functional.scaled_dot_product_attention
    wanted = full(queries[:, :, None], keys, values, scale=0.125, enable_gqa=True)
    torch.testing.assert_close(output, wanted[:, :, 0], **TOLERANCE)


@each_impl
@pytest.mark.parametrize("group", ["shared", "each"])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_attention_with_pads_bias_and_softcap(softcap, group, impl, device):
    rows = {"shared": 2, "each": 6}[group]
    queries, keys, values = attention_inputs(2, 6, 2, 150, 20, device)
    indices = choose(2, rows, 150, 71)
    indices[:, :, [0, 5, 40, 70]] = -1  # anywhere, both ends included
    indices[0, 1, 3:] = -1
    bias = normal(2, rows, 71, seed=3) * 2
    bias[1, 0, 1:30] = -math.inf
    bias, indices = bias.to(device), indices.to(device)
    check(queries * 4, keys, values, indices, impl, scale=0.3, bias=bias, softcap=softcap)
    check(queries * 4, keys, values, indices, impl, scale=0.3, softcap=softcap)


@each_impl
@pytest.mark.parametrize("layout", ["apart", "one row", "pool"])
def test_rows_without_tokens_give_zero_and_pads_are_never_read(layout, impl, device):
    queries, keys, values = attention_inputs(1, 6, 3, 80, 16, device)
    if layout == "one row":
        both = torch.cat([keys, values], -1)
        keys, values = both[..., :16], both[..., 16:]
    for buffer in (keys, values):
        buffer[:, :, [0, -1]] = math.nan  # where a careless gather of -1 would look
    if layout == "pool":
        keys, values = (buffer[:, :1].expand(1, 3, 80, 16) for buffer in (keys, values))
    indices = 1 + choose(1, 3, 78, 70).to(device)
    indices[0, 0] = -1
    bias = torch.zeros(1, 3, 70, device=device)
    bias[0, 1] = -math.inf
    indices[0, 2, 65:] = -1
    for options in ({}, {"bias": bias}, {"bias": bias, "softcap": 3.0}):
        output = check(queries, keys, values, indices, impl, scale=0.25, **options)
        assert (output[:, :2] == 0).all()
        assert bool((output[:, 2:4] == 0).all()) == ("bias" in options)
    for nothing in (indices[:, :, :0], indices[:, :, :1].clone().fill_(-1)):
        output, lse = gather_attention(queries, keys, values, nothing, scale=0.25, impl=impl)
        assert (output == 0).all()
        assert (lse == -math.inf).all()


@each_impl
@pytest.mark.parametrize(
    "layout",
    ["capacity", "tokens first", "odd strides", "one row", "one row a token", "values behind", "different", "pool"],
)
def test_attention_reads_any_strides(layout, impl, device):
    if layout == "capacity":  # a longer buffer that starts inside another tensor
        keys, values = normal(2, 2, 3, 200, 16, seed=1, device=device)[:, :, :, 10:110]
    elif layout == "tokens first":
        keys, values = normal(2, 2, 100, 3, 16, seed=1, device=device).transpose(2, 3)
    elif layout == "odd strides":
        keys, values = normal(2, 2, 3, 16, 100, seed=1, device=device).transpose(3, 4)
    elif layout == "one row":
        both = normal(2, 3, 130, 32, seed=1, device=device)[:, :, 20:120]
        keys, values = both[..., :16], both[..., 16:]
    elif layout == "one row a token":
        keys, values = normal(2, 100, 3, 2, 16, seed=1, device=device).permute(3, 0, 2, 1, 4)
    elif layout == "values behind":  # adjacent, but keys' and values' tokens are not interleaved
        both = normal(2, 3, 100, 40, seed=1, device=device)
        keys, values = both[..., 4:20], both[..., 20:36]
    elif layout == "different":
        keys = normal(2, 100, 3, 16, seed=1, device=device).transpose(1, 2)
        values = normal(2, 3, 100, 16, seed=2, device=device)
    else:
        both = normal(100, 32, seed=1, device=device)
        keys, values = (half.expand(2, 3, 100, 16) for half in (both[:, :16], both[:, 16:]))
    queries = normal(2, 6, 16, device=device)
    for rows in (3, 6):
        indices = choose(2, rows, 100, 37).to(device)
        indices[:, :, 3] = -1
        check(queries, keys, values, indices, impl, scale=0.25)


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@RATIOS
def test_attention_of_half_precision_is_computed_in_float32(heads, kv_heads, dtype, impl, device):
    queries, keys, values = (tensor.to(dtype) for tensor in attention_inputs(1, heads, kv_heads, 90, 32, device))
    indices = choose(1, kv_heads, 90, 63).to(device)
    output, lse = gather_attention(queries, keys, values, indices, scale=0.2, impl=impl)
    wanted_output, wanted_lse = brute_force(queries, keys, values, indices, scale=0.2)
    torch.testing.assert_close(lse.cpu().double(), wanted_lse, **TOLERANCE)
    one_rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(output.cpu(), wanted_output.to(dtype), rtol=one_rounding, atol=1e-5)


@each_impl
def test_a_query_of_another_dtype_than_the_buffer(impl, device):
    queries, keys, values = attention_inputs(1, 4, 2, 90, 32, device)
    keys, values = keys.half(), values.half()
    check(queries, keys, values, choose(1, 2, 90, 63).to(device), impl, scale=0.2)


def test_bad_heads_say_what_was_wanted():
    keys, picks = normal(1, 3, 10, 16), torch.zeros(1, 3, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"got indices for 2 heads; wanted 3 \(key/value\) or 9 \(query\)"):
        gather_attention(normal(1, 9, 16), keys, keys, picks[:, :2], scale=1.0)
    with pytest.raises(ValueError, match="got 8 query heads; wanted a multiple of the 3 key/value heads"):
        gather_attention(normal(1, 8, 16), keys, keys, picks, scale=1.0)
