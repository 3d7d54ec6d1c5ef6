"""Merging of partial attention against weights in float64, and against attention over all tokens."""

from __future__ import annotations

import math

import pytest
import torch
from kvviz_kernels import gather_attention, merge_attention

from tests.kernels.kernel_cases import TOLERANCE, each_impl, normal


def merged_by_hand(outputs, lses):
    outputs, lses = torch.stack(outputs).double().cpu(), torch.stack(lses).double().cpu()
    weights = torch.where(lses > -math.inf, (lses - lses.amax(0).clamp(min=-1e30)).exp(), 0.0)
    masked_outputs = torch.where(weights[..., None] > 0, outputs, 0.0)
    total = weights.sum(0)
    return (masked_outputs * weights[..., None]).sum(0) / total.clamp(min=1e-300)[..., None], total.log() + lses.amax(0)


@each_impl
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("width", [1, 24, 128])
def test_parts_are_weighted_by_their_log_sum_exp(width, count, impl, device):
    outputs = [normal(2, 5, width, seed=part, device=device) for part in range(count)]
    lses = [normal(2, 5, seed=100 + part, device=device) * 30 for part in range(count)]
    lses[0][0, 0] = -math.inf
    outputs[0][0, 0] = math.nan  # has weight 0, whatever its value
    for lse in lses:
        lse[1, 1] = -math.inf
    output, lse = merge_attention(outputs, lses, impl=impl)
    expected_output, expected_lse = merged_by_hand(outputs, lses)
    torch.testing.assert_close(output.cpu().double(), expected_output, **TOLERANCE)
    torch.testing.assert_close(lse.cpu().double(), expected_lse, **TOLERANCE)
    assert (output[1, 1] == 0).all()
    assert lse[1, 1] == -math.inf


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype, impl, device):
    outputs = [normal(1, 3, 16, seed=part, device=device).to(dtype) for part in range(6)]
    outputs[3] = outputs[3].float()
    lses = [normal(1, 3, seed=100 + part, device=device) for part in range(6)]
    output, _ = merge_attention(outputs, lses, impl=impl)
    expected, _ = merged_by_hand([part.float() for part in outputs], lses)
    assert output.dtype == dtype
    torch.testing.assert_close(output.cpu(), expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@each_impl
def test_parts_of_any_strides(impl, device):
    outputs = [*normal(3, 7, 2, 5, device=device).permute(1, 2, 3, 0)[:2]]
    lses = [*normal(5, 2, 2, seed=1, device=device).permute(1, 2, 0)]
    output, _ = merge_attention(outputs, lses, impl=impl)
    torch.testing.assert_close(output.cpu().double(), merged_by_hand(outputs, lses)[0], **TOLERANCE)


@each_impl
def test_merged_parts_equal_attention_over_all_tokens(impl, device):
    queries = normal(2, 6, 16, device=device)
    keys, values = normal(2, 2, 2, 60, 16, seed=1, device=device)
    parts = [*torch.arange(60, device=device).view(20, 3).t(), torch.empty(0, dtype=torch.long, device=device)]
    results = [gather_attention(queries, keys, values, part.expand(2, 2, -1), scale=0.25, impl=impl) for part in parts]
    merged = merge_attention([output for output, _ in results], [lse for _, lse in results], impl=impl)
    full = torch.nn.functional.scaled_dot_product_attention
    expected = full(queries[:, :, None], keys, values, scale=0.25, enable_gqa=True)[:, :, 0]
    torch.testing.assert_close(merged[0], expected, **TOLERANCE)
    logits = queries.unflatten(1, (2, 3)) @ keys.transpose(-1, -2) * 0.25
    torch.testing.assert_close(merged[1], logits.logsumexp(-1).flatten(1, 2), **TOLERANCE)


def test_errors_of_bad_arguments():
    with pytest.raises(ValueError, match=r"got 0 outputs and 0 log-sum-exps; wanted .* at least one"):
        merge_attention([], [])
    with pytest.raises(ValueError, match="got 1 outputs and 2 log-sum-exps"):
        merge_attention([normal(1, 2, 4)], [normal(1, 2)] * 2)
