"""The inverted file's kernels, naive and fused: unions against NumPy, lists against loops in float64."""

from __future__ import annotations

import os

import kvviz_kernels
import numpy as np
import pytest
import torch
from kvviz_kernels import ivf_lists, ivf_union
from kvviz_kernels.inverted_file import best_first, naive

from tests.kernels.kernel_cases import each_device, each_form, each_impl, each_on_cpu, normal

interpreted = pytest.mark.skipif(
    not kvviz_kernels.has_triton() or os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter"
)


def check_union(entries: torch.Tensor, length: int, impl: str, width: int | None = None) -> None:
    tokens, first, counts = ivf_union(entries, length, width=width, impl=impl)
    assert tokens.dtype == first.dtype == counts.dtype == torch.int64
    lists = entries.cpu().numpy()
    distinct = {row: np.unique(lists[row], return_index=True) for row in np.ndindex(*lists.shape[:-1])}
    real = {row: (unique >= 0) & (unique < length) for row, (unique, _) in distinct.items()}
    distinct = {row: (unique[real[row]], positions[real[row]]) for row, (unique, positions) in distinct.items()}
    slots = max([1, *(len(expected) for expected, _ in distinct.values())]) if width is None else width
    assert tokens.shape == first.shape == (*entries.shape[:-1], slots)
    assert counts.shape == entries.shape[:-1]
    for row, (expected, positions) in distinct.items():
        pads = max(0, slots - len(expected))
        assert counts[row] == len(expected)
        assert tokens[row].tolist() == [*expected[:slots], *[-1] * pads]
        assert first[row].tolist() == [*positions[:slots], *[0] * pads]
    alone, no_places, same = ivf_union(entries, length, width=width, places=False, impl=impl)
    assert torch.equal(alone, tokens)
    assert torch.equal(same, counts)
    assert no_places.shape == (*entries.shape[:-1], 0)


@pytest.mark.slow
@each_form
@pytest.mark.parametrize(
    ("entries", "length"),
    [(0, 5), (1, 1), (7, 31), (40, 32), (40, 33), (63, 64), (100, 1000), (1000, 100), (1500, 40_000)],
)
def test_unions_agree_with_numpy(entries, length, impl, device):
    lists = np.random.default_rng(0).integers(-3, length + 3, (2, 3, entries))  # below 0 or from `length` on: ignored
    for dtype in (torch.int32, torch.int64):
        check_union(torch.tensor(lists, dtype=dtype, device=device), length, impl)


@each_form
@pytest.mark.parametrize("width", [1, 20, 300, 1200])
def test_unions_of_a_given_width(width, impl, device):
    lists = torch.from_numpy(np.random.default_rng(1).integers(-1, 200, (3, 300))).to(device)
    check_union(lists, 200, impl, width=width)


@each_form
def test_rows_with_no_token_one_token_and_all_tokens(impl, device):
    lists = torch.full((4, 128), -1)
    lists[1] = 127
    lists[2] = torch.arange(127, -1, -1)
    lists[3, 100] = 0
    check_union(lists.to(device), 128, impl)
    check_union(lists[:1].to(device), 128, impl)
    check_union(lists.to(device)[:, ::2], 128, impl)  # not contiguous
    check_union(lists[:0].to(device), 128, impl)


def test_the_naive_union_is_the_same_on_all_devices():
    lists = torch.from_numpy(np.random.default_rng(2).integers(-1, 520, (5, 300)))
    for width in (None, 10, 300):
        results = naive._union(lists, 500, width), naive._union_on_cpu(lists, 500, width, places=True)
        assert all(torch.equal(result, expected) for result, expected in zip(*results, strict=True))


def reduced(centroids, keys, scale, group, softcap=None, last=None):
    """Softmax weights [R, C, L] of centroids [Q, C, D] over keys [H, L, D] in float64, -1 for keys after `last`."""
    heads, length, _ = keys.shape
    by_head = centroids.cpu().double().unflatten(0, (heads, -1))  # [H, G, C, D]
    logits = by_head @ keys.cpu().double()[:, None].mT * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    later = torch.arange(length) > (torch.full((centroids.shape[1],), length) if last is None else last.cpu())[:, None]
    weights = logits.masked_fill(later, -torch.inf).softmax(-1)
    rows = weights.flatten(0, 1) if group == "each" else getattr(weights, "amax" if group == "max" else group)(1)
    return rows.masked_fill(later, -1.0)


def check_lists(centroids, keys, count, impl, *, group="max", within=None, **options):
    """Assert that the lists hold the keys with the largest weights, descending; ties in float32 go either way."""
    lists = ivf_lists(centroids, keys, count, scale=0.3, group=group, within=within, impl=impl, **options)
    weights = reduced(centroids, keys, 0.3, group, **options)
    start, stop = within or (0, keys.shape[-2])
    assert (lists.shape, lists.dtype) == ((*weights.shape[:2], count), torch.int32)
    for row in np.ndindex(*weights.shape[:2]):
        entries, row_weights = lists[row].cpu(), weights[row]
        order = row_weights[start:stop].argsort(descending=True, stable=True)[:count] + start
        expected = order[row_weights[order] >= 0]
        pads = count - len(expected)
        assert entries[len(expected) :].tolist() == [-1] * pads, "as many as possible, pads at the end"
        listed = entries[: len(expected)].long()
        assert len(set(listed.tolist())) == len(listed)
        assert bool(((listed >= start) & (listed < stop)).all())
        torch.testing.assert_close(row_weights[listed], row_weights[expected], rtol=1e-5, atol=1e-9)
    return lists


@pytest.mark.slow
@each_impl
@pytest.mark.parametrize("group", ["max", "mean", "sum", "each"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (4, 1)], ids=["MHA", "GQA", "MQA"])
def test_lists_at_all_ratios(heads, kv_heads, group, impl, device):
    centroids, keys = normal(heads, 7, 24).to(device), normal(kv_heads, 130, 24, seed=1).to(device)
    check_lists(centroids, keys, 40, impl, group=group)
    last = torch.tensor([0, 5, 6, 39, 40, 128, 129], device=device)
    check_lists(centroids, keys, 40, impl, group=group, last=last, softcap=3.0, within=(4, 120))


@each_impl
@pytest.mark.parametrize("length", [1, 63, 100, 1000, 2500])
def test_lists_at_odd_lengths(length, impl, device):
    centroids, keys = normal(2, 2, 20).to(device), normal(1, length, 20, seed=1).to(device)
    for count in {max(1, length // 3), length}:
        check_lists(centroids, keys, count, impl)


@each_impl
def test_equal_weights_go_to_the_earlier_key(impl, device):
    keys = normal(3, 16, seed=1)[torch.arange(2500) % 3][None].to(device)
    centroids = normal(1, 2, 16).to(device)
    lists = ivf_lists(centroids, keys, 1700, scale=0.3, within=(2, 2500), impl=impl)
    for number in range(2):
        residues = (keys[0, :3] @ centroids[0, number]).argsort(descending=True).tolist()
        expected = [position for residue in residues for position in range(2, 2500) if position % 3 == residue]
        assert lists[0, number].tolist() == expected[:1700]


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lists_of_half_precision(dtype, impl, device):
    centroids, keys = normal(4, 5, 32).to(device, dtype), normal(2, 200, 32, seed=1).to(device, dtype)
    check_lists(centroids, keys, 50, impl)
    check_lists(centroids.float(), keys, 50, impl)


@pytest.mark.slow
@each_impl
def test_lists_of_any_leading_dimensions_and_strides(impl, device):
    centroids = normal(2, 1, 5, 6, 16).to(device).transpose(2, 3)  # [2, 1, 6, 5, 16]
    keys = normal(2, 1, 3, 90, 16, seed=1).to(device)[..., 10:80, :]
    lists = ivf_lists(centroids, keys, 20, scale=0.3, impl=impl)
    assert lists.shape == (2, 1, 3, 5, 20)
    for place in np.ndindex(2, 1):
        assert torch.equal(lists[place], check_lists(centroids[place], keys[place], 20, impl))


@pytest.mark.slow
@each_impl
def test_lists_do_not_depend_on_the_blocks_of_centroids(impl, device, monkeypatch):
    centroids, keys = normal(6, 21, 16).to(device), normal(2, 150, 16, seed=1).to(device)
    whole = ivf_lists(centroids, keys, 30, scale=0.3, impl=impl)
    if impl == "fused":
        from kvviz_kernels.inverted_file import fused

        monkeypatch.setattr(fused, "BLOCK_ELEMENTS", 8 * 2 * 150)  # 8 centroids at a time, 5 in the last block
    else:
        monkeypatch.setattr(naive, "BLOCK_ELEMENTS", 1)
    assert torch.equal(ivf_lists(centroids, keys, 30, scale=0.3, impl=impl), whole)


@interpreted
def test_all_candidate_configurations_give_the_same_lists():
    from kvviz_kernels.inverted_file import fused

    centroids, keys = normal(4, 3, 16), normal(2, 70, 16, seed=1)
    options = {"scale": 0.3, "group": "max", "softcap": None, "within": (0, 70), "last": None}
    expected = naive.ivf_lists(centroids, keys, 20, **options)
    for config in fused.CANDIDATES:
        assert config.keys() == fused.DEFAULT.keys()
        assert torch.equal(fused.ivf_lists(centroids, keys, 20, **options, config=config), expected)


def test_an_unknown_group():
    with pytest.raises(ValueError, match="ivf_lists: got group='median'; wanted one of max, mean, sum, each"):
        ivf_lists(normal(1, 1, 4), normal(1, 5, 4), 2, scale=1.0, group="median")


@each_on_cpu
@each_device
@pytest.mark.parametrize("places", [1, 63, 100, 1000])
def test_best_first_is_a_stable_sort(places, device, impl):
    generator = torch.Generator().manual_seed(places)
    weights = torch.randint(-2, 30, (2, 3, places), generator=generator).float() * 1e-3  # ties; some negative
    weights[0, 0, : places // 2] = torch.tensor([0.0, 1e-45, 3e38, 1.0])[: places // 2].repeat(places)[: places // 2]
    for count in {1, max(1, places // 4), places, places + 3}:
        result = best_first(weights.to(device), count, impl=impl).cpu()
        order = torch.sort(weights, dim=-1, descending=True, stable=True).indices
        order = torch.where(weights.gather(-1, order) < 0, -1, order)
        expected = torch.nn.functional.pad(order, (0, max(0, count - places)), value=-1)[..., :count]
        assert torch.equal(result, expected)
