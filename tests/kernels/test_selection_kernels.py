"""Selection kernels, naive and fused, against brute force at odd lengths and for all ratios of heads."""

from __future__ import annotations

import kvviz_kernels
import numpy as np
import pytest
import torch
from kvviz_kernels.selection import (
    count_pairs,
    naive,
    page_scores,
    pair_cells,
    pairs_pay,
    pq_scores,
    quantized,
    select_clusters,
    take_best,
    take_clusters,
)

from tests.kernels.kernel_cases import each_form, each_impl, each_on_cpu, normal

HEADS = pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (4, 1)], ids=["MHA", "GQA", "MQA"])
GROUPS = ("mean", "max", "sum", "each")


def few_values(*shape: int, seed: int = 0) -> torch.Tensor:
    """Scores with many ties, including both zeros and infinities."""
    values = torch.tensor([-torch.inf, -2.0, -0.0, 0.0, 1.5, torch.inf])
    return values[torch.randint(len(values), shape, generator=torch.Generator().manual_seed(seed))]


def clusters_of(batch: int, heads: int, count: int, length: int, start: int = 0):
    """Sizes, offsets and order of random clusters, some empty."""
    labels = torch.randint(count, (batch, heads, length), generator=torch.Generator().manual_seed(count + length))
    sizes = torch.nn.functional.one_hot(labels, count).sum(2)
    offsets = torch.nn.functional.pad(sizes.cumsum(-1), (1, 0))
    return labels, sizes, offsets, labels.argsort(dim=-1, stable=True) + start


def clusters_by_hand(scores, labels, budget: int, start: int = 0):
    """Positions of one row, ascending: the tokens of the best clusters up to the budget."""
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    tokens = [token for number in order for token in np.flatnonzero(labels == number)]
    return sorted(token + start for token in tokens[:budget])


@each_impl
@pytest.mark.parametrize(
    ("length", "count", "budget", "heads", "kv_heads"),
    [
        (1, 1, 5, 2, 2),
        (63, 7, 20, 6, 2),
        (100, 33, 99, 2, 1),
        pytest.param(1000, 81, 60, 2, 1, marks=pytest.mark.slow),
        (200, 20, 0, 2, 2),
    ],
)
@pytest.mark.parametrize("scored", ["by heads", "by query heads", "ties"])
def test_whole_clusters_are_selected_up_to_the_budget(scored, length, count, budget, heads, kv_heads, impl, device):
    rows = heads if scored == "by query heads" else kv_heads
    labels, *lists = clusters_of(2, kv_heads, count, length, start=4)
    scores = (few_values if scored == "ties" else normal)(2, rows, count)
    indices, groups, chosen_scores = take_clusters(
        scores.to(device), *(part.to(device) for part in lists), budget, details=True, impl=impl
    )
    if scored == "by heads":
        plain, *nothing = take_clusters(scores.to(device), *(part.to(device) for part in lists), budget, impl=impl)
        assert nothing == [None, None]
        assert torch.equal(plain, indices)
    assert (indices.dtype, groups.dtype, chosen_scores.dtype) == (torch.int64, torch.int32, torch.float32)
    for b in range(2):
        for row in range(rows):
            row_labels = labels[b, row // (rows // kv_heads)].numpy()
            assert indices[b, row].tolist() == clusters_by_hand(scores[b, row].tolist(), row_labels, budget, start=4)
            assert groups[b, row].tolist() == row_labels[indices[b, row].cpu().numpy() - 4].tolist()
            assert torch.equal(chosen_scores[b, row].cpu(), scores[b, row][groups[b, row].cpu().long()])


@each_impl
@HEADS
@pytest.mark.parametrize("group", GROUPS)
def test_clusters_are_ranked_by_their_centroids(group, heads, kv_heads, impl, device):
    batch = 1 if kv_heads > 2 or group == "each" else 2  # the interpreter is slow
    queries, centroids = normal(batch, heads, 24), normal(batch, kv_heads, 21, 24, seed=1)
    labels, *lists = clusters_of(batch, kv_heads, 21, 90)
    inputs = (queries.to(device), centroids.to(device), *(part.to(device) for part in lists))
    indices, groups, scores = select_clusters(*inputs, 30, group=group, details=True, impl=impl)
    expected = reduced(np.einsum("bhgd,bhcd->bhgc", by_head(queries, kv_heads), centroids.double().numpy()), group)
    for b in range(batch):
        for row in range(expected.shape[1]):
            head = row // (expected.shape[1] // kv_heads)
            assert indices[b, row].tolist() == clusters_by_hand(expected[b, row], labels[b, head].numpy(), 30)
    np.testing.assert_allclose(scores.cpu(), np.take_along_axis(expected, groups.cpu().long().numpy(), -1), atol=1e-5)
    if impl == "naive":
        assert torch.equal(select_clusters(*inputs, 30, group=group, impl=impl)[0], indices)


def by_head(queries, kv_heads):
    return queries.double().numpy().reshape(queries.shape[0], kv_heads, -1, queries.shape[-1])


def reduced(scores, group):
    """[B, H, G, N] -> [B, R, N]."""
    if group == "each":
        return scores.reshape(scores.shape[0], -1, scores.shape[-1])
    return getattr(scores, group)(2)


@each_form
@pytest.mark.parametrize("length", [1, 63, 100, 1000])
@pytest.mark.parametrize("kind", [normal, few_values])
def test_the_best_scores_agree_with_a_stable_sort(kind, length, impl, device):
    scores = kind(2, 3, length)
    for count in sorted({1, length // 3, length + 5} | ({0, length - 1, length} if impl == "naive" else set())):
        best = take_best(scores.to(device), count, impl=impl)
        expected = np.sort(np.argsort(-scores.numpy(), axis=-1, kind="stable")[..., :count], axis=-1)
        assert best.dtype == torch.int64
        assert np.array_equal(best.cpu().numpy(), expected)


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_best_of_strided_and_half_precision_scores(dtype, impl, device):
    scores = normal(1, 2, 2100).to(dtype).to(device)[..., 37:1500]
    expected = np.sort(np.argsort(-scores.cpu().float().numpy(), axis=-1, kind="stable")[..., :200], axis=-1)
    assert np.array_equal(take_best(scores, 200, impl=impl).cpu().numpy(), expected)
    assert np.array_equal(take_best(scores.float(), 200, impl=impl).cpu().numpy(), expected)


@pytest.mark.parametrize("count", [1, 40, 600])
@pytest.mark.parametrize(
    "kind", ["random", "few values", "ascending", "sampled scores too low", "sampled scores too high"]
)
def test_a_sample_of_the_scores_never_changes_the_best(kind, count):
    """The bound from the sample may let too many scores pass or too few; the best are the same."""
    scores = normal(3, 2700).numpy()
    if kind == "few values":
        scores = scores.round()
    elif kind == "ascending":
        scores.sort(axis=-1)
    elif kind != "random":
        scores[:, :: naive.SAMPLE_STEP] = 9.0 if kind == "sampled scores too high" else -9.0
    expected = np.sort(np.argsort(-scores, axis=-1, kind="stable")[:, :count], axis=-1)
    misled = naive._candidates(scores, count) is None
    assert misled == (kind == "sampled scores too high" and count > 1 + 2700 // naive.SAMPLE_STEP)
    assert np.array_equal(naive._best_on_cpu(scores, count), expected)


@each_impl
@HEADS
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("pages", [1, 63, 100])
def test_a_page_is_scored_by_the_best_corner_of_its_box(pages, group, heads, kv_heads, impl, device):
    queries = normal(2, heads, 20)
    corners = normal(2, 2, kv_heads, pages, 20, seed=1)
    high, low = corners.amax(0), corners.amin(0)
    joined = torch.cat([high, low], -1).transpose(-1, -2)
    bounds = torch.nn.functional.pad(joined, (0, 9)).to(device)[..., :pages]  # a buffer with spare room
    scores = page_scores(queries.to(device), bounds, group=group, impl=impl)
    grouped_queries = by_head(queries, kv_heads)[..., None, :]  # [B, H, G, 1, D]
    sides = [grouped_queries * side.double().numpy()[:, :, None] for side in (high, low)]
    expected = reduced(np.maximum(*sides).sum(-1), group)
    assert scores.dtype == torch.float32
    np.testing.assert_allclose(scores.cpu(), expected, rtol=1e-5, atol=1e-5)


@each_impl
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_bounds_are_scored_in_float32(dtype, impl, device):
    queries, bounds = (tensor.to(dtype).to(device) for tensor in (normal(1, 4, 16), normal(1, 2, 32, 70, seed=1)))
    for group in ("max", "mean"):
        scores = page_scores(queries, bounds, group=group, impl=impl)
        expected = page_scores(queries.float().cpu(), bounds.float().cpu(), group=group, impl="naive")
        torch.testing.assert_close(scores.cpu(), expected, rtol=1e-5, atol=1e-5)


def quantised(batch, kv_heads, length, parts, count, width, seed=1):
    dtype = torch.uint8 if count <= 256 else torch.uint16
    generator = torch.Generator().manual_seed(length)
    codes = torch.randint(count, (batch, kv_heads, length, parts), generator=generator)
    return normal(batch, kv_heads, parts, count, width // parts, seed=seed), codes.to(dtype)


def pq_by_hand(queries, centroids, codes, group, scale, softcap):
    parts, centroids, codes = centroids.shape[2], centroids.double().numpy(), codes.long().numpy()
    keys = np.concatenate(
        [np.take_along_axis(centroids[:, :, p], codes[..., p, None], axis=2) for p in range(parts)], -1
    )
    scores = np.einsum("bhgd,bhld->bhgl", by_head(queries, keys.shape[1]), keys)
    if scale is not None:
        scores = scores * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        scores = weights / weights.sum(-1, keepdims=True)
    return reduced(scores, group)


@each_form
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("scale", "softcap"), [(None, None), (0.5, None), (0.5, 2.0)])
@pytest.mark.parametrize(
    ("length", "parts", "count", "heads", "kv_heads"),
    [(1, 2, 3, 3, 3), (63, 4, 256, 6, 2), (100, 2, 8, 3, 3), pytest.param(1000, 2, 16, 4, 1, marks=pytest.mark.slow)],
)
def test_quantised_tokens_are_scored_by_their_centroids(
    length, parts, count, scale, softcap, group, heads, kv_heads, impl, device
):
    queries = normal(2, heads, 16)
    centroids, codes = quantised(2, kv_heads, length, parts, count, 16)
    inputs = (queries.to(device), centroids.to(device), codes.to(device))
    scores = pq_scores(*inputs, group=group, scale=scale, softcap=softcap, impl=impl)
    expected = pq_by_hand(queries, centroids, codes, group, scale, softcap)
    assert scores.dtype == torch.float32
    np.testing.assert_allclose(scores.cpu(), expected, rtol=2e-5, atol=1e-5 if scale is None else 1e-9)


@each_form
def test_long_codes_strided_codes_and_many_splits(impl, device):
    queries = normal(1, 4, 16)
    for length, parts, count in ((5000, 2, 20), (3000, 2, 300)):  # several runs of tokens; codes of two bytes
        centroids, codes = quantised(1, 2, length, parts, count, 16)
        buffer = torch.zeros(1, 2, length + 77, parts, dtype=codes.dtype)
        buffer[:, :, :length] = codes
        inputs = (queries.to(device), centroids.to(device), buffer.to(device)[:, :, :length])
        scores = pq_scores(*inputs, group="mean", scale=0.25, impl=impl)
        expected = pq_by_hand(queries, centroids, codes, "mean", 0.25, None)
        np.testing.assert_allclose(scores.cpu(), expected, rtol=2e-5, atol=1e-10)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_scores_by_pairs_equal_those_by_tokens(group, scale, monkeypatch):
    """With few pairs of codes the naive form scores pairs, with the same result whether or not counts are given.

    The compiled form scores pairs if counts are given.
    """
    queries = normal(2, 6, 16)
    centroids, codes = quantised(2, 2, 900, 2, 16, 16)
    assert pairs_pay(centroids, codes)
    counts = torch.zeros(2, 2, 16, 16)
    for start, stop in ((0, 899), (899, 900)):
        count_pairs(counts, pair_cells(codes[:, :, start:stop], 16))
    pairs = codes[1, 0].long()
    assert counts[1, 0].sum() == 900
    assert counts[1, 0, 3, 5] == ((pairs[:, 0] == 5) & (pairs[:, 1] == 3)).sum()
    by_pairs = pq_scores(queries, centroids, codes, group=group, scale=scale, impl="naive")
    with_counts = pq_scores(queries, centroids, codes, group=group, scale=scale, counts=counts, impl="naive")
    monkeypatch.setattr(quantized, "pairs_pay", lambda *_: False)
    by_tokens = pq_scores(queries, centroids, codes, group=group, scale=scale, impl="naive")
    assert torch.equal(by_pairs, with_counts)
    tolerance = {"rtol": 2e-5, "atol": 1e-6 if scale is None else 1e-9}
    torch.testing.assert_close(by_pairs, by_tokens, **tolerance)
    if kvviz_kernels.has_numba():
        compiled = pq_scores(queries, centroids, codes, group=group, scale=scale, counts=counts, impl="compiled")
        torch.testing.assert_close(compiled, by_tokens, **tolerance)


@each_on_cpu
def test_weights_far_below_the_best_pair_of_codes(impl):
    """No token has the best entries of both parts; a shift by their sum would leave only zeros."""
    centroids = torch.zeros(1, 1, 2, 2, 1)
    centroids[0, 0, :, 1] = 200.0
    codes = torch.tensor([[0, 1], [1, 0], [0, 0]], dtype=torch.uint8).repeat(2, 1)[None, None]
    counts = torch.zeros(1, 1, 2, 2)
    count_pairs(counts, pair_cells(codes, 2))
    weights = pq_scores(torch.ones(1, 1, 2), centroids, codes, group="mean", scale=1.0, counts=counts, impl=impl)
    torch.testing.assert_close(weights[0, 0], torch.tensor([0.25, 0.25, 0.0] * 2))


def test_numpy_and_torch_select_the_same_tokens_on_the_cpu(monkeypatch):
    scores = few_values(2, 6, 40).bfloat16()
    _, *lists = clusters_of(2, 3, 40, 500)
    with_numpy = take_clusters(scores, *lists, 130, details=True, impl="naive"), take_best(scores, 17, impl="naive")
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    with_torch = naive.take_clusters(scores, *lists, 130, details=True), naive.take_best(scores, 17)
    assert all(torch.equal(first, second) for first, second in zip(with_numpy[0], with_torch[0], strict=True))
    assert torch.equal(with_numpy[1], with_torch[1])


def test_scores_that_require_a_gradient():
    scores = normal(1, 2, 50).requires_grad_()
    assert torch.equal(take_best(scores, 7), take_best(scores.detach(), 7))


def test_errors_of_bad_arguments():
    queries, bounds = normal(1, 6, 16), normal(1, 2, 32, 9)
    with pytest.raises(ValueError, match="got group='all'; wanted one of mean, max, sum, each"):
        page_scores(queries, bounds, group="all")
    with pytest.raises(ValueError, match="got 5 query heads; wanted a multiple of the 2 key/value heads"):
        page_scores(queries[:, :5], bounds, group="mean")
    with pytest.raises(ValueError, match="got impl='fast'"):
        take_best(bounds[0], 3, impl="fast")
