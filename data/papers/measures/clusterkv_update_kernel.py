"""ClusterKV, figure 7: the paper's centroid update kernel, with atomic additions, and the sweep of P on a GPU.

kvviz's own kernel (kvviz_kernels.kmeans) sorts tokens by label and adds without atomics, so that results do not depend
on the order of threads; it has no P. The paper's kernel is in triton_kernels/, as the paper describes it.
"""

from __future__ import annotations

from typing import Any

from measures import SEED, Rows, measure


@measure(gpu=True, tokens=[24], channels=16, clusters=3, heads=2, block_sizes=[8], partitions=[2, 4], runs=1)
def clusterkv_update_kernel(
    lm: Any, tokens: tuple[int, ...] = (8192, 32_768), channels: int = 128, clusters: int = 400, heads: int = 8,
    block_sizes: tuple[int, ...] = (256, 512), partitions: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128),
    runs: int = 20,
) -> Rows:  # fmt: skip
    """Milliseconds of a centroid update by length, BlockSize and P; `kvviz` is the time of the kernel without atomics.

    Keys are random; labels too, so that clusters have about the same size. Every result is compared with
    `kvviz_kernels.kmeans_update`; `error` is the largest difference.
    """
    import torch
    from kvviz_kernels import kmeans_update

    from measures.triton_kernels.clusterkv_update import update_with_atomics

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(SEED)
    rows = []
    for length in tokens:
        keys = torch.randn(heads, length, channels, generator=generator).to(device)
        labels = torch.randint(clusters, (heads, length), generator=generator).to(device)
        sums, sizes = kmeans_update(keys, labels, clusters)
        own_ms = 1e3 * _seconds(lambda: kmeans_update(keys, labels, clusters), runs)  # noqa: B023  # called at once
        for block in block_sizes:
            for parts in partitions:
                atomic_sums, counts = update_with_atomics(keys, labels, clusters, block, parts)
                assert torch.equal(counts.long(), sizes), f"P = {parts}, BlockSize {block}: wrong sizes"
                error = float((atomic_sums - sums).abs().max())
                assert error < 1e-2, f"P = {parts}, BlockSize {block}: wrong sums"
                call = (keys, labels, clusters, block, parts)
                rows.append({
                    "tokens": length, "block_size": block, "P": parts, "channels": channels, "clusters": clusters,
                    "ms": 1e3 * _seconds(lambda: update_with_atomics(*call), runs),  # noqa: B023  # called at once
                    "kvviz_ms": own_ms, "error": error,
                })  # fmt: skip
    return rows


def _seconds(call: Any, runs: int) -> float:
    """Median seconds of a call, after one to warm up."""
    import statistics
    import time

    import torch

    times = []
    for _ in range(runs + 1):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])
