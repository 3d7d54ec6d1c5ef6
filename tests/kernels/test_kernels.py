"""Kernels of k-means against brute force in float64, and the choice between naive and fused."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import kvviz_kernels
import pytest
import torch
from kvviz_kernels import (
    gather_attention,
    gather_weights,
    ivf_union,
    kmeans_assign,
    kmeans_update,
    pq_scores,
    take_best,
)
from kvviz_kernels.inverted_file import best_first
from kvviz_kernels.selection import count_pairs, pair_cells
from torch.utils.flop_counter import FlopCounterMode

from tests.kernels.kernel_cases import LENGTHS, TOLERANCE, each_form, each_impl, normal

NUMBA = pytest.mark.skipif(not kvviz_kernels.has_numba(), reason="Numba is not installed (extra: cpu)")


def nearest(keys: torch.Tensor, centroids: torch.Tensor, metric: str) -> torch.Tensor:
    keys, centroids = keys.cpu().double()[..., :, None, :], centroids.cpu().double()[..., None, :, :]  # [..., L, C, D]
    if metric == "l2":
        return (keys - centroids).square().sum(-1).argmin(-1)
    scores = (keys * centroids).sum(-1)
    return (scores / (keys.norm(dim=-1) * centroids.norm(dim=-1)) if metric == "cosine" else scores).argmax(-1)


@each_form
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
@pytest.mark.parametrize("length", LENGTHS)
def test_assignment_is_the_nearest_centroid(length, metric, impl, device):
    keys, centroids = normal(2, 2, length, 20, device=device), normal(2, 2, 67, 20, seed=1, device=device)
    labels = kmeans_assign(keys, centroids, metric=metric, impl=impl)
    assert labels.dtype == torch.int64
    assert torch.equal(labels.cpu(), nearest(keys, centroids, metric))


@each_form
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_ties_go_to_the_lowest_label(metric, impl, device):
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-2, 3, (2, 130, 8), generator=generator).float().to(device)  # small integers: sums are exact
    keys[..., 0] = 1  # no zero key
    corners = torch.randint(0, 2, (2, 70, 4), generator=generator).float() * 2 - 1
    centroids = torch.nn.functional.pad(corners, (2, 2)).to(device)  # norm 2, at most 16 distinct ones
    labels = kmeans_assign(keys, centroids, metric=metric, impl=impl)
    assert torch.equal(labels.cpu(), nearest(keys, centroids, metric))
    if metric != "l2":
        assert (kmeans_assign(keys * 0, centroids, metric=metric, impl=impl) == 0).all()


def test_assignment_does_not_depend_on_the_chunks(monkeypatch):
    keys, centroids = normal(1, 1000, 16), normal(1, 30, 16, seed=1)
    whole = kmeans_assign(keys, centroids, metric="l2", impl="naive")
    monkeypatch.setattr(kvviz_kernels.kmeans.naive, "CHUNK_SCORES", 30 * 128)
    assert torch.equal(kmeans_assign(keys, centroids, metric="l2", impl="naive"), whole)


@each_impl
@pytest.mark.parametrize("length", LENGTHS)
def test_update_sums_each_cluster(length, impl, device):
    keys = normal(2, 2, length, 20, device=device)
    labels = torch.randint(9, (2, 2, length), generator=torch.Generator().manual_seed(1)).to(device)
    sums, sizes = kmeans_update(keys, labels, 11, impl=impl)  # clusters 9 and 10 are empty
    one_hot = torch.nn.functional.one_hot(labels, 11)
    assert torch.equal(sizes, one_hot.sum(-2))
    torch.testing.assert_close(sums.double(), one_hot.double().transpose(-1, -2) @ keys.double(), **TOLERANCE)
    assert (sums[..., 9:, :] == 0).all()


@each_impl
def test_half_precision_keys_are_clustered_in_float32(impl, device):
    keys, centroids = normal(2, 100, 24, device=device).half(), normal(2, 10, 24, seed=1, device=device)
    labels = kmeans_assign(keys, centroids, metric="cosine", impl=impl)
    assert torch.equal(labels.cpu(), nearest(keys, centroids, "cosine"))
    sums, _ = kmeans_update(keys, labels, 10, impl=impl)
    expected = torch.nn.functional.one_hot(labels, 10).double().transpose(-1, -2) @ keys.double()
    torch.testing.assert_close(sums.double(), expected, **TOLERANCE)


@each_impl
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_centroids_are_not_rounded_to_the_keys_dtype(metric, dtype, impl, device):
    keys = normal(3, 300, 40, device=device).to(dtype)
    centroids = normal(3, 1, 40, seed=1, device=device) + normal(3, 50, 40, seed=2, device=device) * 2e-3
    labels = kmeans_assign(keys, centroids, metric=metric, impl=impl)  # in bfloat16 all would be equal
    assert torch.equal(labels.cpu(), nearest(keys, centroids, metric))


@each_impl
def test_update_does_not_depend_on_the_batch_or_the_size_of_clusters(impl, device):
    keys = normal(5, 1000, 20, device=device)
    labels = torch.randint(7, (5, 1000), generator=torch.Generator().manual_seed(1))
    labels[:, 100:900] = 3  # longer than a piece of the fused form
    labels[4] = 6
    sums, sizes = kmeans_update(keys, labels.to(device), 9, impl=impl)
    expected = torch.nn.functional.one_hot(labels, 9).double().transpose(-1, -2) @ keys.cpu().double()
    torch.testing.assert_close(sums.cpu().double(), expected, rtol=1e-5, atol=1e-4)
    for row in range(5):
        alone, count = kmeans_update(keys[row].clone(), labels[row].to(device), 9, impl=impl)
        assert torch.equal(alone, sums[row])
        assert torch.equal(count, sizes[row])


@pytest.mark.parametrize("n_clusters", [9, 5000, 70_000])  # 16-bit bins, 32-bit bins, too many for the CPU's radix sort
def test_sorting_by_label(n_clusters, device):
    labels = torch.randint(n_clusters, (2, 4, 300), generator=torch.Generator().manual_seed(1)).to(device)
    order, sizes = kvviz_kernels.sort_by_label(labels, n_clusters)
    assert torch.equal(order, (labels * 300 + torch.arange(300, device=device)).argsort(-1))
    assert torch.equal(sizes, torch.stack([row.bincount(minlength=n_clusters) for row in labels.view(8, 300)])
                       .view(2, 4, n_clusters))  # fmt: skip


@pytest.mark.skipif(not kvviz_kernels.has_triton(), reason="Triton is not installed (extra: kernels)")
def test_parts_for_tensor_cores_add_up_to_float32():
    from kvviz_kernels.kmeans.fused import split_float32

    weights = torch.cat([normal(1000), normal(1000) * 1e-20, normal(1000) * 1e20, torch.tensor([0.0, 3.4e38, -3.4e38])])
    for dtype, count in ((torch.bfloat16, 3), (torch.float16, 2), (torch.float32, 2)):
        parts = split_float32(weights, dtype)
        assert len(parts) == count
        assert torch.equal(parts.double().sum(0), weights.double())


def test_errors_of_bad_arguments(monkeypatch):
    keys = normal(1, 3, 10, 16)
    with pytest.raises(ValueError, match="got impl='fast'; wanted 'auto', 'naive', 'compiled' or 'fused'"):
        kmeans_assign(keys, keys, impl="fast")
    with pytest.raises(ValueError, match="got impl='compiled', which it does not have"):
        kmeans_update(keys, torch.zeros(1, 3, 10, dtype=torch.int64), 1, impl="compiled")
    with pytest.raises(ValueError, match="got metric='dot'; wanted one of cosine, ip, l2"):
        kmeans_assign(keys, keys, metric="dot")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="wanted one on an NVIDIA GPU"):
        kmeans_update(keys, torch.zeros(1, 3, 10, dtype=torch.int64), 1, impl="fused")
    monkeypatch.setattr(kvviz_kernels.dispatch, "has_triton", lambda: False)
    with pytest.raises(ImportError, match="kvviz\\[kernels\\]"):
        kmeans_update(keys, torch.zeros(1, 3, 10, dtype=torch.int64), 1, impl="fused")
    with pytest.raises(ValueError, match=r"got impl='compiled' for torch\.float16 on cpu"):
        take_best(keys[0].half(), 1, impl="compiled")
    monkeypatch.setattr(kvviz_kernels.dispatch, "has_numba", lambda: False)
    with pytest.raises(ImportError, match="kvviz\\[cpu\\]"):
        take_best(keys[0], 1, impl="compiled")


def test_auto_logs_its_choice_once(caplog):
    kvviz_kernels.dispatch._log_once.cache_clear()
    keys = normal(10, 4)
    with caplog.at_level(logging.INFO, "kvviz_kernels"):
        for _ in range(2):
            kmeans_assign(keys, keys)
            take_best(keys[None], 1)
    form = "compiled" if kvviz_kernels.has_numba() else "naive"
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"kmeans_assign: {form} on cpu", f"take_best: {form} on cpu"]


@pytest.fixture
def two_threads():
    """In several processes tests have one thread each, with which no kernel runs in parallel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@NUMBA
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_gives_the_same_on_one_thread(two_threads):
    """On threads Numba would end the process, since GNU OpenMP's did not survive the fork."""
    scores = normal(1, 2, 9000)  # enough for threads
    expected = take_best(scores, 20, impl="compiled")
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(take_best(scores, 20, impl="compiled"), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_counter_of_operations_sees_the_naive_form():
    queries, keys = normal(1, 6, 16), normal(1, 2, 50, 16, seed=1)
    indices = torch.arange(20).expand(1, 2, -1)
    with FlopCounterMode(display=False) as counter:
        gather_weights(queries, keys, indices, scale=0.25, group="max")
    assert counter.get_total_flops() == 2 * 6 * 20 * 16


def compiled_results():
    """What each compiled kernel gives, with pads, ties and uneven parts."""
    queries, keys, values = normal(2, 6, 32), normal(2, 3, 2000, 32, seed=1), normal(2, 3, 2000, 32, seed=2)
    indices = torch.arange(0, 2000, 2).expand(2, 3, -1).clone()
    indices[1, :, 700:] = -1
    centroids, codes = normal(2, 3, 2, 16, 16), (normal(2, 3, 2000, 2) * 4).to(torch.int64).remainder(16).byte()
    counts = torch.zeros(2, 3, 16, 16)
    count_pairs(counts, pair_cells(codes, 16))
    yield from gather_attention(queries, keys, values, indices, scale=0.2, impl="compiled")
    for group in ("max", "mean"):
        yield gather_weights(queries, keys, indices, scale=0.2, group=group, impl="compiled")
        for given in (None, counts):
            yield pq_scores(queries, centroids, codes, group=group, scale=0.2, counts=given, impl="compiled")
    yield take_best(normal(2, 3, 2000).round(decimals=1), 300, impl="compiled")
    yield from ivf_union((normal(2, 3, 900) * 500).int(), 1000, impl="compiled")
    yield kmeans_assign(keys, keys[:, :, :400].round(decimals=0), metric="ip", impl="compiled")
    yield best_first(normal(2, 3, 2000).round(decimals=1), 300, impl="compiled")


@NUMBA
def test_compiled_kernels_give_the_same_on_threads(two_threads, monkeypatch):
    def results(grain, threads, used):
        monkeypatch.setattr("kvviz_kernels.compiling.GRAIN", grain)
        monkeypatch.setattr("kvviz_kernels.compiling._MOST_THREADS", used)
        torch.set_num_threads(threads)  # another number each time, so that Numba is told how many are used
        return list(compiled_results())

    alone, together, one_of_them = results(10**9, 2, 2), results(0, 2, 2), results(0, 3, 1)
    for serial, parallel, on_one in zip(alone, together, one_of_them, strict=True):
        assert torch.equal(parallel, on_one)  # the form for threads, whatever their number
        torch.testing.assert_close(parallel, serial, rtol=1e-6, atol=1e-7)  # the last bit of a sum may differ ...
        assert parallel.is_floating_point() or torch.equal(parallel, serial)  # ... and no position


SAME_BITS = """
import hashlib
from tests.kernels.test_kernels import compiled_results
print(*(hashlib.sha256(result.numpy().tobytes()).hexdigest() for result in compiled_results()))
"""


@NUMBA
@pytest.mark.slow
def test_kernels_on_one_thread_give_the_same_bits_compiled_or_loaded(tmp_path):
    """Grids that end and go on elsewhere would otherwise differ from those of one process."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def bits():
        return subprocess.run(
            [sys.executable, "-c", SAME_BITS], check=True, env=environment, capture_output=True
        ).stdout

    compiled = bits()
    assert len(compiled.split()) == 14
    assert bits() == compiled
    some = list(tmp_path.rglob("*._weights*"))
    assert some
    for kept in some:  # compiled again, after other kernels and helpers were loaded
        kept.unlink()
    assert bits() == compiled


FORMS = """
import torch
from kvviz_kernels import take_best
from kvviz_kernels.selection import compiled

torch.set_num_threads(2)
for length in (100, 9000):
    take_best(torch.randn(1, 2, length), 20, impl="compiled")
serial, parallel = ("".join(form.inspect_llvm().values()) for form in compiled._take)
assert "parfor" in parallel and "parfor" not in serial
"""


@NUMBA
def test_what_is_kept_on_disk_does_not_mix_up_the_forms(tmp_path):
    """Numba keeps code by the function's name and types, whether or not it was compiled for threads."""
    subprocess.run([sys.executable, "-c", FORMS], check=True, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)})


@NUMBA
@pytest.mark.parametrize("group", ["max", "mean", "each"])
def test_compiled_kernels_of_no_tokens(group):
    queries, keys = normal(1, 6, 16), normal(1, 3, 10, 16)
    rows = 6 if group == "each" else 3
    none = torch.empty(1, rows, 0, dtype=torch.int64)
    assert gather_weights(queries, keys, none, scale=0.25, group=group, impl="compiled").shape == (1, rows, 0)
    codes = torch.empty(1, 3, 0, 2, dtype=torch.uint8)
    scores = pq_scores(queries, normal(1, 3, 2, 4, 8), codes, group=group, scale=0.25, impl="compiled")
    assert scores.shape == (1, rows, 0)
    output, lse = gather_attention(queries, keys, keys, none, scale=0.25, impl="compiled")
    assert not output.any()
    assert torch.isneginf(lse).all()
