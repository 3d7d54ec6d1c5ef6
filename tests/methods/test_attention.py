"""Exact attention and merged partial attention against torch's SDPA, and the worker thread that builds states."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kvviz.kernels import gather_attention
from kvviz.methods.attention import attention_weights, merge_attention, weighted_values
from kvviz.offload.background import Worker


def tensors(length, heads, kv_heads, batch=2, dim=16):
    generator = torch.Generator().manual_seed(length + heads)
    queries = torch.randn(batch, heads, dim, generator=generator)
    keys, values = torch.randn(2, batch, kv_heads, length, dim, generator=generator)
    return queries, keys, values


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_weights_times_values_is_sdpa(heads, kv_heads):
    queries, keys, values = tensors(77, heads, kv_heads)
    output = weighted_values(attention_weights(queries, keys, 0.25), values)
    expected = scaled_dot_product_attention(queries[:, :, None], keys, values, scale=0.25, enable_gqa=True)[:, :, 0]
    torch.testing.assert_close(output, expected)


def test_soft_capped_weights():
    queries, keys, _ = tensors(9, 2, 2)
    logits = torch.einsum("bhd,bhld->bhl", queries.double(), keys.double())
    expected = (1.5 * torch.tanh(logits / 1.5)).softmax(-1)
    torch.testing.assert_close(
        attention_weights(queries, keys, 1.0, softcap=1.5).double(), expected, rtol=1e-5, atol=1e-6
    )


def test_merged_parts_equal_attention_over_all_tokens():
    queries, keys, values = tensors(60, 6, 2)
    parts = [torch.arange(0, 60, 3), torch.arange(1, 60, 3), torch.arange(2, 60, 3), torch.empty(0, dtype=torch.long)]
    results = [
        gather_attention(queries, keys, values, part.expand(2, 2, -1).contiguous(), scale=0.25) for part in parts
    ]
    output, lse = merge_attention([result[0] for result in results], [result[1] for result in results])
    expected, expected_lse = gather_attention(
        queries, keys, values, torch.arange(60).expand(2, 2, -1).contiguous(), scale=0.25
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_merging_empty_parts_gives_zero():
    output, lse = merge_attention([torch.zeros(1, 2, 4)], [torch.full((1, 2), -torch.inf)])
    assert torch.equal(output, torch.zeros(1, 2, 4))
    assert torch.equal(lse, torch.full((1, 2), -torch.inf))


class TestWorker:
    def test_tasks_run_in_order_and_the_thread_ends(self):
        worker, finished = Worker("build"), []
        futures = [worker.submit(lambda number=number: finished.append(number)) for number in range(20)]
        for future in futures:
            future.result(timeout=120)
        assert finished == list(range(20))
        deadline = time.monotonic() + 120  # busy machines
        while any(thread.name.startswith("kvviz-build") for thread in threading.enumerate()):
            assert time.monotonic() < deadline, "the worker's thread is still running"
            time.sleep(0.01)
        assert worker.submit(lambda: 7).result(timeout=120) == 7

    def test_the_result_raises_the_error_of_the_task(self):
        worker = Worker("build")
        with pytest.raises(ZeroDivisionError):
            worker.submit(lambda: 1 / 0).result(timeout=120)
        assert worker.submit(lambda: 7).result(timeout=120) == 7
