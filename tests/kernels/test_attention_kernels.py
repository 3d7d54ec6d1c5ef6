"""Attention over selected tokens against softmax in float64 and torch's attention."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from kvviz_kernels import gather_attention, gather_weights

from tests.kernels.kernel_cases import LENGTHS, TOLERANCE, each_form, each_impl, each_on_cpu, normal

HEADS_AND_GROUPS = pytest.mark.parametrize(
    ("heads", "kv_heads", "group"), [(6, 2, "max"), (6, 2, "mean"), (4, 1, "sum"), (6, 3, "each")]
)
RATIOS = pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (9, 3), (8, 1)], ids=["MHA", "GQA", "MQA"])


def attention_inputs(batch, heads, kv_heads, length, width, device):
    shapes = (batch, heads, width), (batch, kv_heads, length, width), (batch, kv_heads, length, width)
    return tuple(normal(*shape, seed=seed, device=device) for seed, shape in enumerate(shapes))


def choose(batch: int, rows: int, capacity: int, slots: int, seed: int = 1) -> torch.Tensor:
    """Distinct random positions for each row, ascending."""
    generator = torch.Generator().manual_seed(seed)
    picks = [torch.randperm(capacity, generator=generator)[:slots].sort().values for _ in range(batch * rows)]
    return torch.stack(picks).view(batch, rows, slots)


def brute_force(queries, keys, values, indices, *, scale, bias=None, softcap=None):
    """Attention in float64 over the positions that are not pads, one query head after the other."""
    batch, heads, _ = queries.shape
    output = torch.zeros(queries.shape, dtype=torch.float64)
    lse = torch.full((batch, heads), -math.inf, dtype=torch.float64)
    for b in range(batch):
        for q in range(heads):
            row, head = q * indices.shape[1] // heads, q * keys.shape[1] // heads
            not_pad = indices[b, row] >= 0
            positions = indices[b, row][not_pad].cpu()
            logits = keys[b, head].cpu()[positions].double() @ queries[b, q].cpu().double() * scale
            if softcap is not None:
                logits = softcap * torch.tanh(logits / softcap)
            if bias is not None:
                logits = logits + bias[b, row][not_pad].cpu().double()
            if len(logits) and logits.max() > -math.inf:
                output[b, q] = logits.softmax(0) @ values[b, head].cpu()[positions].double()
                lse[b, q] = logits.logsumexp(0)
    return output, lse


def agree(result, queries, keys, values, indices, **options):
    """Assert that output and log-sum-exp are those of brute force, for float32 inputs."""
    output, lse = result
    expected_output, expected_lse = brute_force(queries, keys, values, indices, **options)
    assert output.dtype == queries.dtype
    assert output.shape == queries.shape
    assert lse.dtype == torch.float32
    torch.testing.assert_close(output.cpu().double(), expected_output, **TOLERANCE)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, **TOLERANCE)


def check(queries, keys, values, indices, impl, *, padded=True, **options):
    result = gather_attention(queries, keys, values, indices, impl=impl, padded=padded, **options)
    agree(result, queries, keys, values, indices, **options)
    return result[0]


@each_form
@pytest.mark.parametrize("slots", LENGTHS)
@RATIOS
def test_attention_at_odd_lengths_and_all_ratios(slots, heads, kv_heads, impl, device):
    queries, keys, values = attention_inputs(2, heads, kv_heads, 1003, 24, device)
    indices = choose(2, kv_heads, 1003, slots).to(device)
    check(queries, keys, values, indices, impl, scale=24**-0.5, padded=False)


@each_form
def test_attention_over_all_tokens_is_torch_attention(impl, device):
    queries, keys, values = attention_inputs(2, 8, 2, 100, 64, device)
    all_tokens = torch.arange(100, device=device).expand(2, 2, 100)
    output, _ = gather_attention(queries, keys, values, all_tokens, scale=0.125, impl=impl)
    full = torch.nn.functional.scaled_dot_product_attention
    expected = full(queries[:, :, None], keys, values, scale=0.125, enable_gqa=True)
    torch.testing.assert_close(output, expected[:, :, 0], **TOLERANCE)


@each_form
@pytest.mark.parametrize("group", ["shared", "each"])
@pytest.mark.parametrize("softcap", [None, 5.0])
def test_attention_with_pads_bias_and_softcap(softcap, group, impl, device):
    rows = {"shared": 2, "each": 6}[group]
    queries, keys, values = attention_inputs(2, 6, 2, 150, 20, device)
    indices = choose(2, rows, 150, 71)
    indices[:, :, [0, 5, 40, 70]] = -1  # also at both ends
    indices[0, 1, 3:] = -1
    bias = normal(2, rows, 71, seed=3) * 2
    bias[1, 0, 1:30] = -math.inf
    bias, indices = bias.to(device), indices.to(device)
    check(queries * 4, keys, values, indices, impl, scale=0.3, bias=bias, softcap=softcap)
    check(queries * 4, keys, values, indices, impl, scale=0.3, softcap=softcap)


@each_form
@pytest.mark.parametrize("layout", ["apart", "one row", "pool"])
def test_rows_without_tokens_give_zero_and_pads_are_never_read(layout, impl, device):
    queries, keys, values = attention_inputs(1, 6, 3, 80, 16, device)
    if layout == "one row":
        joined = torch.cat([keys, values], -1)
        keys, values = joined[..., :16], joined[..., 16:]
    for buffer in (keys, values):
        buffer[:, :, [0, -1]] = math.nan  # a careless gather of -1 would read these
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
    for no_tokens in (indices[:, :, :0], indices[:, :, :1].clone().fill_(-1)):
        output, lse = gather_attention(queries, keys, values, no_tokens, scale=0.25, impl=impl)
        assert (output == 0).all()
        assert (lse == -math.inf).all()


@each_form
@pytest.mark.parametrize(
    "layout",
    ["capacity", "tokens first", "odd strides", "one row", "one row per token", "values behind", "different", "pool"],
)
def test_attention_reads_any_strides(layout, impl, device):
    if layout == "capacity":  # a longer buffer that starts inside another tensor
        keys, values = normal(2, 2, 3, 200, 16, seed=1, device=device)[:, :, :, 10:110]
    elif layout == "tokens first":
        keys, values = normal(2, 2, 100, 3, 16, seed=1, device=device).transpose(2, 3)
    elif layout == "odd strides":
        keys, values = normal(2, 2, 3, 16, 100, seed=1, device=device).transpose(3, 4)
    elif layout == "one row":
        joined = normal(2, 3, 130, 32, seed=1, device=device)[:, :, 20:120]
        keys, values = joined[..., :16], joined[..., 16:]
    elif layout == "one row per token":
        keys, values = normal(2, 100, 3, 2, 16, seed=1, device=device).permute(3, 0, 2, 1, 4)
    elif layout == "values behind":  # adjacent, but keys' and values' tokens are not interleaved
        joined = normal(2, 3, 100, 40, seed=1, device=device)
        keys, values = joined[..., 4:20], joined[..., 20:36]
    elif layout == "different":
        keys = normal(2, 100, 3, 16, seed=1, device=device).transpose(1, 2)
        values = normal(2, 3, 100, 16, seed=2, device=device)
    else:
        joined = normal(100, 32, seed=1, device=device)
        keys, values = (half.expand(2, 3, 100, 16) for half in (joined[:, :16], joined[:, 16:]))
    queries = normal(2, 6, 16, device=device)
    for rows in (3, 6):
        indices = choose(2, rows, 100, 37).to(device)
        indices[:, :, 3] = -1
        if (layout, impl) == ("odd strides", "compiled"):
            with pytest.raises(ValueError, match="on the CPU, stride 1 in the last dimension"):
                check(queries, keys, values, indices, impl, scale=0.25)
            impl = "auto"
        check(queries, keys, values, indices, impl, scale=0.25)


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@RATIOS
def test_attention_of_half_precision_is_computed_in_float32(heads, kv_heads, dtype, impl, device):
    queries, keys, values = (tensor.to(dtype) for tensor in attention_inputs(1, heads, kv_heads, 90, 32, device))
    indices = choose(1, kv_heads, 90, 63).to(device)
    output, lse = gather_attention(queries, keys, values, indices, scale=0.2, impl=impl)
    expected_output, expected_lse = brute_force(queries, keys, values, indices, scale=0.2)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, **TOLERANCE)
    one_rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(output.cpu(), expected_output.to(dtype), rtol=one_rounding, atol=1e-5)


@each_impl
def test_a_query_of_another_dtype_than_the_buffer(impl, device):
    queries, keys, values = attention_inputs(1, 4, 2, 90, 32, device)
    keys, values = keys.half(), values.half()
    check(queries, keys, values, choose(1, 2, 90, 63).to(device), impl, scale=0.2)


def test_errors_of_wrong_heads():
    keys, picks = normal(1, 3, 10, 16), torch.zeros(1, 3, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"got indices for 2 heads; wanted 3 \(key/value\) or 9 \(query\)"):
        gather_attention(normal(1, 9, 16), keys, keys, picks[:, :2], scale=1.0)
    with pytest.raises(ValueError, match="got 8 query heads; wanted a multiple of the 3 key/value heads"):
        gather_attention(normal(1, 8, 16), keys, keys, picks, scale=1.0)


@each_on_cpu
@HEADS_AND_GROUPS
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("slots", [1, 130, 700])
def test_weights_are_the_softmax_over_the_selected_tokens(slots, softcap, heads, kv_heads, group, impl):
    queries, keys, _ = attention_inputs(2, heads, kv_heads, 1003, 24, "cpu")
    rows = heads if group == "each" else kv_heads
    indices = choose(2, rows, 1003, slots)
    indices[0, 0, slots // 2 :] = -1  # a row with pads, or of pads only
    weights = gather_weights(queries, keys, indices, scale=0.2, group=group, softcap=softcap, impl=impl)
    assert weights.dtype == torch.float32
    for b, row in itertools.product(range(2), range(rows)):
        real = indices[b, row] >= 0
        head, members = row * kv_heads // rows, slice(row * heads // rows, (row + 1) * heads // rows)
        logits = queries[b, members].double() @ keys[b, head, indices[b, row][real]].double().T * 0.2
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        expected = torch.full((slots,), -1.0, dtype=torch.float64)
        by_query = logits.softmax(-1)
        expected[real] = getattr(by_query, "amax" if group in ("max", "each") else group)(0)
        torch.testing.assert_close(weights[b, row].double(), expected, rtol=2e-5, atol=1e-9)


def test_weights_of_keys_in_half_precision_and_errors():
    queries, keys, _ = attention_inputs(1, 4, 2, 100, 16, "cpu")
    indices = choose(1, 2, 100, 30)
    half = gather_weights(queries.half(), keys.half(), indices, scale=0.25, group="max")
    expected = gather_weights(queries.half().float(), keys.half().float(), indices, scale=0.25, group="max")
    torch.testing.assert_close(half, expected)
    with pytest.raises(ValueError, match="got indices with 2 rows; wanted 4 rows for group='each'"):
        gather_weights(queries, keys, indices, scale=0.25, group="each")
    with pytest.raises(ValueError, match="got impl='fused', which it does not have"):
        gather_weights(queries, keys, indices, scale=0.25, group="max", impl="fused")
