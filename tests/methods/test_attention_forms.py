"""Details of each implementation of attention over selected tokens: the gathers of plain torch, Triton's splits."""

from __future__ import annotations

import math

import pytest
import torch
from kvviz_kernels import gather_attention
from kvviz_kernels.attention import naive
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kernels.kernel_cases import LENGTHS, TOLERANCE, each_fused, normal
from tests.kernels.test_attention_kernels import RATIOS, agree, attention_inputs, brute_force, check, choose


class OperatorNames(TorchDispatchMode):
    """Records the names of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


class TestNaive:
    def test_keys_and_values_in_one_row_are_gathered_once(self):
        both = normal(1, 3, 200, 32)
        queries, indices = normal(1, 6, 16), choose(1, 3, 200, 50)
        for keys, values, gathers in [
            (both[..., :16], both[..., 16:], 1),
            (both[..., :16].contiguous(), both[..., 16:].contiguous(), 2),
            (both[..., 16:], both[..., :16], 2),
        ]:
            with OperatorNames() as operators:
                result = gather_attention(queries, keys, values, indices, scale=0.25, padded=False, impl="naive")
            assert operators.names.count("index_select") == gathers
            agree(result, queries, keys, values, indices, scale=0.25)

    def test_results_are_the_same_without_the_flash_operator(self, monkeypatch):
        assert naive._flash_is_exact(), "torch 2.6 to 2.13 have it"
        queries, keys, values = attention_inputs(2, 6, 3, 90, 20, "cpu")
        indices, bias = choose(2, 3, 90, 40), normal(2, 3, 40, seed=7)
        indices[0, 1, 5:], indices[1, 2] = -1, -1
        bias[0, 0], bias[0, 2, :3] = -math.inf, -math.inf
        for flash in (True, False):
            monkeypatch.setattr(naive, "_flash_is_exact", lambda flash=flash: flash)
            with OperatorNames() as operators:
                check(queries, keys, values, indices, "naive", scale=0.25)
            assert ("_scaled_dot_product_flash_attention_for_cpu" in operators.names) == flash
            check(queries, keys, values, indices, "naive", scale=0.25, bias=bias)
            check(queries, keys, values, indices.clamp(min=0), "naive", scale=0.25, padded=False)

    @pytest.mark.parametrize("change", ["missing", "another signature", "lse in another order", "another lse"])
    def test_an_operator_that_changed_is_not_used(self, change, monkeypatch):
        real = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

        def changed(*args, attn_mask, scale):
            if change == "missing":
                raise AttributeError("'_OpNamespace' 'aten' object has no attribute")
            if change == "another signature":
                raise TypeError("unexpected argument")
            output, lse = real(*args, attn_mask=attn_mask, scale=scale)
            return output, lse.transpose(1, 2) if change == "lse in another order" else lse / math.log(2)

        monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", changed)
        naive._flash_is_exact.cache_clear()
        assert not naive._flash_is_exact()
        monkeypatch.undo()
        naive._flash_is_exact.cache_clear()
        assert naive._flash_is_exact()


class TestFused:
    @each_fused
    @pytest.mark.parametrize("slots", LENGTHS)
    @pytest.mark.parametrize("programs", [7, 1000])
    def test_merged_splits_equal_attention_over_all_slots(self, programs, slots, device):
        from kvviz_kernels.attention import fused

        queries, keys, values = attention_inputs(1, 6, 2, 1003, 24, device)
        indices = choose(1, 2, 1003, slots).to(device)
        indices[0, 0, : slots // 2] = -1  # splits with nothing but pads
        indices[0, 1] = -1
        bias = normal(1, 2, slots, seed=5, device=device)
        config = {**fused.DEFAULT_FLOAT32, "block": 32, "programs": programs}
        options = {"scale": 0.2, "bias": bias, "softcap": 4.0}
        result = fused.gather_attention(queries, keys, values, indices, config=config, **options)
        agree(result, queries, keys, values, indices, **options)

    @each_fused
    @pytest.mark.parametrize("dot", [2, 16])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    @RATIOS
    def test_with_and_without_tensor_cores(self, heads, kv_heads, dtype, dot, device):
        from kvviz_kernels.attention import fused

        inputs = (tensor.to(dtype) for tensor in attention_inputs(1, heads, kv_heads, 200, 40, device))
        queries, keys, values = inputs
        indices = choose(1, kv_heads, 200, 100).to(device)
        config = {**fused.DEFAULT, "block": 32, "dot": dot, "programs": 6}
        output, lse = fused.gather_attention(queries, keys, values, indices, scale=0.2, config=config)
        expected_output, expected_lse = brute_force(queries, keys, values, indices, scale=0.2)
        torch.testing.assert_close(lse.cpu().double(), expected_lse, **TOLERANCE)
        rounding = TOLERANCE["rtol"] if dtype == torch.float32 else torch.finfo(dtype).eps
        torch.testing.assert_close(output.cpu(), expected_output.to(dtype), rtol=rounding, atol=1e-5)

    @each_fused
    def test_splits_are_whole_blocks_that_cover_all_slots(self, device, monkeypatch):
        from kvviz_kernels.attention import fused

        monkeypatch.setattr(fused, "_multiprocessors", lambda device: 132)
        for rows in (1, 8, 64, 1000):
            for slots in (1, 31, 512, 1024, 1025, 100_000):
                for block in (16, 64):
                    splits, slots_of_split = fused._split(rows, slots, block, 2, torch.device(device))
                    assert slots_of_split % block == 0
                    assert (splits - 1) * slots_of_split < slots <= splits * slots_of_split
                    assert splits <= fused.MAX_STACKED
                    assert splits == 1 or splits * rows <= 264
        assert fused._split(64, 1024, 64, 2, torch.device(device)) == (4, 256)

    @each_fused
    def test_candidates_are_configurations(self, device):
        from kvviz_kernels.attention import fused

        assert all(candidate.keys() == fused.DEFAULT.keys() for candidate in fused.CANDIDATES)
        assert fused.DEFAULT.keys() == fused.DEFAULT_FLOAT32.keys()

    @pytest.mark.gpu
    def test_offsets_beyond_32_bits(self):
        queries = normal(1, 1, 128, device="cuda").half()
        keys = torch.zeros(1, 1, 2**24 + 100, 128, device="cuda", dtype=torch.half)  # 4 GiB
        keys[:, :, -100:] = normal(1, 1, 100, 128, seed=1, device="cuda").half()
        indices = choose(1, 1, 2**24 + 100, 1)[:, :, :0].new_tensor([[[5, 2**24 + 3, 2**24 + 99]]]).cuda()
        output, lse = gather_attention(queries, keys, keys, indices, scale=0.1, impl="fused")
        small_indices = indices.clone()
        small_indices[..., 1:] -= 2**24 - 1
        small_keys = torch.cat([keys[:, :, :1], keys[:, :, -100:]], 2)
        small_indices[..., 0] = 0
        expected_output, expected_lse = brute_force(queries, small_keys, small_keys, small_indices, scale=0.1)
        torch.testing.assert_close(lse.cpu().double(), expected_lse, **TOLERANCE)
        torch.testing.assert_close(output.cpu(), expected_output.half(), rtol=torch.finfo(torch.half).eps, atol=1e-5)
