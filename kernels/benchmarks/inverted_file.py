"""ivf_union against sorting the entries, and ivf_lists against plain torch and against clustering the keys."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from kvviz_kernels import ivf_lists, ivf_union
from timing import Call, Row, alternate, forms, row_of, waiting
from torch import Tensor

from .kmeans import quiet


def unique_by_row(entries: Tensor, length: int) -> list[tuple[Tensor, Tensor]]:
    """torch.unique of each row of entries [R, N], and the first place of each token."""
    unions = []
    for row in entries:
        tokens, place = row.unique(return_inverse=True)
        first = torch.full_like(tokens, len(row), dtype=torch.int64)
        unions.append((tokens, first.scatter_reduce_(0, place, torch.arange(len(row), device=row.device), "amin")))
    return unions


def numpy_unique(entries: Tensor, length: int) -> list[tuple[Tensor, Tensor]]:
    """numpy.unique of each row; GPU tensors are first copied to the host."""
    unions = (np.unique(row, return_index=True) for row in entries.cpu().numpy())
    return [(torch.from_numpy(tokens), torch.from_numpy(first)) for tokens, first in unions]


def plain_lists(centroids: Tensor, keys: Tensor, count: int, scale: float) -> Tensor:
    """Lists [H, C, count] by torch.topk of all weights at once."""
    heads = keys.shape[-3]
    weights = (centroids.float().unflatten(0, (heads, -1)) @ keys.float()[:, None].mT * scale).softmax(-1)
    return weights.amax(1).topk(count, dim=-1).indices


def check(device: torch.device) -> None:
    """Assert that unions are equal, and that lists hold the same keys unless weights are equal."""
    entries = _probed_lists(6, 400, 4096).to(device)
    for width in (None, entries.shape[-1]):
        for impl in forms(device):
            tokens, first, counts = ivf_union(entries, 4096, width=width, impl=impl)
            for baseline in (unique_by_row, numpy_unique):
                for row, (expected, places) in enumerate(baseline(entries, 4096)):
                    count = int(counts[row])
                    assert torch.equal(tokens[row, :count].cpu(), expected.cpu().long()), (impl, baseline.__name__)
                    assert torch.equal(first[row, :count].cpu(), places.cpu()), (impl, baseline.__name__)
    centroids, keys = _queries_and_keys(6, 2, 16, 1000, 64, device, torch.float32)
    exact = plain_lists(centroids.double(), keys.double(), 100, 0.125)
    for impl in forms(device):
        lists = ivf_lists(centroids, keys, 100, scale=0.125, impl=impl).long()
        same = (lists.sort(-1).values == exact.sort(-1).values).all(-1).float().mean()
        assert same > 0.95, f"{impl}: {same:.2f} of the lists are those of float64"  # near ties swap at the border


def rows(device: torch.device) -> list[Row]:
    """Rows of unions in microseconds and of indexes in milliseconds."""
    if device.type == "cpu":
        return [_union_row(3, 2240, 8192, device), _index_row(9, 3, 512, 8192, 64, 960, device)]
    unions = [_union_row(8 * batch, 2560, tokens, device) for batch in (1, 8) for tokens in (8192, 131_072)]
    sizes = [(512, 8192), (2048, 32_768), (320, 131_072), (1024, 131_072), (2048, 131_072)]
    return unions + [_index_row(32, 8, count, tokens, 128, 2560, device) for count, tokens in sizes]


def _probed_lists(rows: int, list_length: int, length: int) -> Tensor:
    """Four lists per row that overlap by about half, int32 [rows, 4 * list_length]."""
    rng = np.random.default_rng(0)
    near = min(length, 2 * list_length)  # the keys that similar queries attend to
    lists = [[rng.permutation(near)[:list_length] for _ in range(4)] for _ in range(rows)]
    spread = np.stack([np.sort(rng.permutation(length)[:near]) for _ in range(rows)])
    flat = np.array(lists).reshape(rows, -1)
    return torch.from_numpy(np.take_along_axis(spread, flat, axis=1).astype(np.int32))


def _queries_and_keys(
    heads: int, kv_heads: int, count: int, tokens: int, width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    centroids = torch.randn(heads, count, width, generator=generator)
    return centroids.to(device, dtype), torch.randn(kv_heads, tokens, width, generator=generator).to(device, dtype)


def _union_row(n: int, list_length: int, length: int, device: torch.device) -> Row:
    entries = _probed_lists(n, list_length, length).to(device)
    union = partial(ivf_union, entries, length)
    calls: dict[str, Call] = {impl: partial(union, impl=impl) for impl in forms(device)}
    calls |= {f"{impl}_given_width": partial(call, width=4 * list_length) for impl, call in calls.items()}
    calls["torch_unique"] = lambda: unique_by_row(entries, length)
    calls["numpy_unique"] = lambda: numpy_unique(entries, length)
    name = f"ivf_union, {n} rows of {entries.shape[-1]} entries, {length} tokens"
    return row_of(name, alternate(waiting(calls, device)), forms(device)[-1])


def _index_row(
    heads: int, kv_heads: int, count: int, tokens: int, width: int, list_length: int, device: torch.device
) -> Row:
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    centroids, keys = _queries_and_keys(heads, kv_heads, count, tokens, width, device, dtype)
    lists = partial(ivf_lists, centroids, keys, list_length, scale=width**-0.5)
    calls: dict[str, Call] = {impl: partial(lists, impl=impl) for impl in forms(device)}
    missing = []
    if heads * count * tokens < 2**31:  # 8 GiB of weights
        calls["torch_topk"] = lambda: plain_lists(centroids, keys, list_length, width**-0.5)
    if device.type == "cpu":
        host = keys.numpy()
        for name, package, build in (("faiss_ivf", "faiss", _faiss_ivf), ("sklearn_kmeans", "sklearn", _sklearn)):
            if importlib.util.find_spec(package) is None:
                missing.append(package)
            else:
                calls[name] = partial(_by_head, build, host, count)
    name = f"ivf_lists, {heads}/{kv_heads} heads, {count} centroids x {tokens} tokens x {width}, lists of {list_length}"
    row = row_of(name, alternate(waiting(calls, device), rounds=3), forms(device)[-1], unit="ms")
    row["logits_tflop"] = 2 * heads * count * tokens * width / 1e12  # of one product; the fused form makes two
    return row | ({"missing": ", ".join(missing)} if missing else {})


def _by_head(build: Callable[[Any, int], Any], keys: Any, count: int) -> list[Any]:
    return [build(head, count) for head in keys]


def _faiss_ivf(keys: Any, count: int) -> Any:
    """faiss's inverted file of one head's keys with `count` lists: 10 k-means iterations, and adding the keys."""
    import faiss

    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(keys.shape[1]), keys.shape[1], count, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # avoids a warning
    index.train(keys)
    index.add(keys)
    return index


def _sklearn(keys: Any, count: int) -> Any:
    """scikit-learn's k-means of one head's keys into `count` clusters, from random keys, at most 10 iterations."""
    from sklearn.cluster import KMeans

    with quiet():
        return KMeans(count, init="random", n_init=1, max_iter=10, random_state=0).fit(keys)
