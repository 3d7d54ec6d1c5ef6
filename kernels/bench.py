"""Times the kernels against what a user would take instead, after checking that they give the same answers.

    python kernels/bench.py [--trace FILE [--layer N]] [--json out.json]

k-means against scikit-learn's KMeans (Lloyd, n_init=1, the same initial centroids, L2 on both sides, head by head for
scikit-learn), and attention over 512 selected tokens against torch's attention over all of them. Contestants
alternate inside one run; a ratio is the median over rounds of this round's ours / theirs: below 1 we are faster.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from kvviz_kernels import gather_attention, kmeans_assign, kmeans_update
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from timing import ROUNDS, Row, alternate, paired_ratio, show, synchronized
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from kvviz.clustering import kmeans
from kvviz.clustering.kmeans import initial_positions
from kvviz.trace import Trace

SEED, LENGTH, ITERATIONS, SELECTED, LAYERS = 0, 8192, 10, 512, 12


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", type=Path, help="a saved kvviz.Trace: real keys instead of synthetic ones")
    parser.add_argument("--layer", type=int, help="layer of the trace (default: the middle one)")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    keys, source = read_keys(options.trace, options.layer) if options.trace else synthetic_keys()
    results = run(keys, source)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


@torch.no_grad()
def run(keys: Tensor, source: str) -> Row:
    """Check the kernels, then time them on keys [H, L, D] that come from `source`."""
    results: Row = {**machine(), "keys": source, "shape": list(keys.shape), "seed": SEED, "rounds": ROUNDS}
    print(*(f"{name}: {value}" for name, value in results.items()), sep="\n")
    check_assignment_and_update(keys)
    check_attention()
    print("checks passed\n")
    results["results"] = [*(bench_kmeans(keys, n_clusters) for n_clusters in (102, 400)), bench_attention()]
    if torch.cuda.is_available():
        results["fused"] = bench_fused(keys.cuda())
    return results


def machine() -> Row:
    """Hardware and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else "unknown",  # ratios need an idle machine
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
    }


def read_keys(path: Path, layer: int | None) -> tuple[Tensor, str]:
    trace = Trace.load(path)
    return keys_of(trace, trace.layers[len(trace.layers) // 2] if layer is None else layer)


def keys_of(trace: Trace, layer: int) -> tuple[Tensor, str]:
    """Keys [H, L, D] of a trace's layer, and what they are."""
    keys = torch.from_numpy(trace.keys[trace.check_layer(layer)].astype(np.float32))[:, :LENGTH].contiguous()
    return keys, f"real: {trace.model}, layer {layer}, {len(trace):,} tokens"


def synthetic_keys() -> tuple[Tensor, str]:
    generator = torch.Generator().manual_seed(SEED)
    centers = torch.randn(3, 200, 64, generator=generator)
    which = torch.randint(200, (LENGTH,), generator=generator)
    return centers[:, which] + torch.randn(3, LENGTH, 64, generator=generator), "synthetic: 200 Gaussian clusters"


def check_assignment_and_update(keys: Tensor) -> None:
    keys = keys[:, :1000]
    centroids = keys[:, initial_positions(keys.shape[1], 50, SEED)]
    wanted = torch.cdist(keys.double(), centroids.double()).argmin(-1)
    for impl in implementations():
        place = "cuda" if impl == "fused" else "cpu"
        labels = kmeans_assign(keys.to(place), centroids.to(place), metric="l2", impl=impl)
        sums, sizes = kmeans_update(keys.to(place), labels, 50, impl=impl)
        marks = one_hot(labels.cpu(), 50).double().transpose(1, 2)
        assert torch.equal(labels.cpu(), wanted), f"kmeans_assign {impl}: other labels than brute force"
        assert torch.equal(sizes.cpu(), marks.sum(-1).long()), f"kmeans_update {impl}: other sizes"
        torch.testing.assert_close(sums.cpu().double(), marks @ keys.double(), rtol=1e-5, atol=1e-4)


def check_attention() -> None:
    queries, keys, values, indices = attention_inputs(1000, 100)
    places = indices[..., None].expand(-1, -1, -1, 64)
    wanted = scaled_dot_product_attention(queries.view(1, 3, 3, 64), keys.gather(2, places), values.gather(2, places))
    for impl in implementations():
        place = "cuda" if impl == "fused" else "cpu"
        moved = [tensor.to(place) for tensor in (queries, keys, values, indices)]
        output, _ = gather_attention(*moved, scale=0.125, impl=impl)
        torch.testing.assert_close(output.cpu(), wanted.view(1, 9, 64), rtol=1e-5, atol=1e-5)


def implementations() -> tuple[Any, ...]:
    return ("naive", "fused") if torch.cuda.is_available() else ("naive",)


def bench_kmeans(keys: Tensor, n_clusters: int) -> Row:
    """k-means of one layer, ours for all heads at once against scikit-learn head by head.

    scikit-learn assigns once more after its last update; `with_final_assignment` gives us that pass too, which makes
    the labels the same.
    """
    start = initial_positions(keys.shape[1], n_clusters, SEED)

    def ours(iterations: int = ITERATIONS) -> Any:
        return kmeans(keys, n_clusters, metric="l2", max_iter=iterations, seed=SEED)

    def theirs() -> list[KMeans]:
        options: Any = {"n_init": 1, "max_iter": ITERATIONS, "tol": 0, "algorithm": "lloyd"}
        return [KMeans(n_clusters, init=head[start].numpy(), **options).fit(head.numpy()) for head in keys]

    warnings.simplefilter("ignore", ConvergenceWarning)
    times = alternate({"ours": ours, "with_final_assignment": lambda: ours(ITERATIONS + 1), "scikit_learn": theirs})
    found, models = ours(), theirs()
    their_inertia = sum(model.inertia_ for model in models)
    chosen = found.centroids.gather(1, found.labels[..., None].expand_as(keys))
    labels = ours(ITERATIONS + 1).labels.numpy()
    row: Row = {
        "name": f"k-means, C = {n_clusters}, {ITERATIONS} iterations",
        "ours_ms": 1e3 * statistics.median(times["ours"]),
        "with_final_assignment_ms": 1e3 * statistics.median(times["with_final_assignment"]),
        "scikit_learn_ms": 1e3 * statistics.median(times["scikit_learn"]),
        "ratio": paired_ratio(times["ours"], times["scikit_learn"]),
        "ratio_with_final_assignment": paired_ratio(times["with_final_assignment"], times["scikit_learn"]),
        "inertia_ratio": (keys - chosen).square().sum(dtype=torch.float64).item() / their_inertia,
        "same_labels_with_final_assignment": float(np.mean(labels == np.stack([model.labels_ for model in models]))),
    }
    assert abs(row["inertia_ratio"] - 1) < 0.01, row
    return show(row)


def bench_attention() -> Row:
    """One decode step's attention over 512 of 8,192 tokens against all of them; layers take turns, as in a model."""
    layers = [attention_inputs(LENGTH, SELECTED, layer) for layer in range(LAYERS)]

    def selected() -> None:
        for queries, keys, values, indices in layers:
            gather_attention(queries, keys, values, indices, scale=0.125, padded=False)

    def selected_with_pads() -> None:
        for queries, keys, values, indices in layers:
            gather_attention(queries, keys, values, indices, scale=0.125)

    def full() -> None:
        for queries, keys, values, _ in layers:
            scaled_dot_product_attention(queries.view(1, 3, 3, 64), keys, values)  # a group as three queries: fastest

    times = alternate({"selected": selected, "pads": selected_with_pads, "full": full}, rounds=5 * ROUNDS)
    return show({
        "name": f"attention, {SELECTED} of {LENGTH} tokens, 9 query heads, 3 key/value heads",
        "ours_us": 1e6 * statistics.median(times["selected"]) / LAYERS,
        "ours_with_pads_us": 1e6 * statistics.median(times["pads"]) / LAYERS,
        "full_sdpa_us": 1e6 * statistics.median(times["full"]) / LAYERS,
        "ratio": paired_ratio(times["selected"], times["full"]),
        "ratio_with_pads": paired_ratio(times["pads"], times["full"]),
    })  # fmt: skip


def bench_fused(keys: Tensor) -> list[Row]:
    """Fused kernels on a GPU against their plain torch form, and attention against SDPA over all tokens."""
    centroids = keys[:, initial_positions(keys.shape[1], 400, SEED).to(keys.device)]
    labels = kmeans_assign(keys, centroids, metric="l2", impl="naive")
    inputs = [tensor.to(keys.device) for tensor in attention_inputs(LENGTH, SELECTED)]
    queries, all_keys, all_values, _ = inputs
    calls: dict[str, dict[str, Callable[[], Any]]] = {
        "kmeans_assign": {
            impl: partial(kmeans_assign, keys, centroids, metric="l2", impl=impl) for impl in ("fused", "naive")
        },
        "kmeans_update": {impl: partial(kmeans_update, keys, labels, 400, impl=impl) for impl in ("fused", "naive")},
        "gather_attention": {
            "fused": partial(gather_attention, *inputs, scale=0.125, impl="fused"),
            "naive": partial(gather_attention, *inputs, scale=0.125, impl="naive"),
            "full_sdpa": partial(scaled_dot_product_attention, queries.view(1, 3, 3, 64), all_keys, all_values),
        },
    }
    rows = []
    for name, contestants in calls.items():
        waiting = {label: synchronized(call) for label, call in contestants.items()}
        times = alternate(waiting, rounds=5 * ROUNDS)
        row: Row = {"name": name} | {f"{label}_us": 1e6 * statistics.median(values) for label, values in times.items()}
        row |= {f"ratio_to_{label}": paired_ratio(times["fused"], times[label]) for label in times if label != "fused"}
        rows.append(show(row))
    return rows


def attention_inputs(length: int, selected: int, seed: int = SEED) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(1, 9, 64, generator=generator)
    keys, values = torch.randn(2, 1, 3, length, 64, generator=generator)
    picks = [torch.randperm(length, generator=generator)[:selected].sort().values for _ in range(3)]
    return queries, keys, values, torch.stack(picks)[None]


if __name__ == "__main__":
    main()
