"""k-means against scikit-learn, faiss and fastkmeans on the CPU, and flash-kmeans and fastkmeans on a GPU.

There are two comparisons. The first uses the same initial keys and number of iterations, which give the same labels, so
that only the speed differs. The second is the time to match each baseline's inertia (the sum of squared distances to
the clusters' means) after 10 iterations from random keys: ours starts from the same keys (fastkmeans draws its
own), is over-relaxed by 1.8, and takes as few iterations as possible. Times include the labels; baselines that take one
matrix run head by head.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from kvviz_kernels import kmeans_assign, kmeans_update
from timing import Row, alternate, forms, medians, paired_ratio, synchronized, waiting
from torch import Tensor
from torch.nn.functional import one_hot

from kvviz.clustering import kmeans
from kvviz.clustering.kmeans import initial_positions

SEED, ITERATIONS, RELAXATION = 0, 10, 1.8
CLUSTERS = (102, 400)
LONG = (32_768, 131_072)  # tokens of 8 heads on a GPU
Labelling = Callable[[Tensor, int], Tensor]  # keys [H, L, D], clusters -> labels [H, L]


def check(device: torch.device) -> None:
    """Assert that both forms agree with brute force in float64, and that all baselines have a similar inertia."""
    keys = synthetic_keys(3, 1000, 64).to(device)
    centroids = keys[:, initial_positions(1000, 50, SEED).to(device)]
    expected = torch.cdist(keys.double(), centroids.double()).argmin(-1)
    for impl in forms(device):
        labels = kmeans_assign(keys, centroids, metric="l2", impl=impl)
        sums, sizes = kmeans_update(keys, labels, 50, impl=impl)
        marks = one_hot(labels, 50).double().transpose(1, 2)
        assert torch.equal(labels, expected), f"kmeans_assign {impl}: the labels differ from brute force"
        assert torch.equal(sizes, marks.sum(-1).long()), f"kmeans_update {impl}: the sizes differ from brute force"
        torch.testing.assert_close(sums.double(), marks @ keys.double(), rtol=1e-5, atol=1e-4)
    ours = inertia(keys, kmeans(keys, 50, metric="l2", max_iter=ITERATIONS).labels)
    for name, run in competitors(device)[0].items():
        ratio = inertia(keys, run(keys, 50)) / ours
        assert 0.9 < ratio < 1.1, f"{name}: {ratio:.3f} of our inertia"


def rows(device: torch.device, keys: Tensor | None = None) -> list[Row]:
    """Both comparisons for 102 and 400 clusters; on a GPU for 8 heads of 32k and 128k tokens, C = 400 and L / 80.

    `keys` [H, L, D] of one layer, on the CPU; by default synthetic.
    """
    if device.type == "cuda":
        cases = [(length, clusters) for length in LONG for clusters in (400, length // 80)]
        long = {length: synthetic_keys(8, length, 128).to(device, torch.bfloat16) for length in LONG}
        return [race_to_inertia(long[length], clusters) for length, clusters in cases] + [
            race_of_forms(long[length], clusters) for length, clusters in cases
        ]
    keys = synthetic_keys(3, 8192, 64) if keys is None else keys
    return [*(race_of_iterations(keys, n) for n in CLUSTERS), *(race_to_inertia(keys, n) for n in CLUSTERS)]


def tune(device: torch.device) -> dict[str, Any]:
    """The fastest configurations on this GPU, also written to its file: assignment by dtype and width, and update.

    Measured at 8 heads of 32k tokens and C = L / 80.
    """
    from kvviz_kernels import tuning
    from kvviz_kernels.kmeans import fused

    best: dict[str, Any] = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for width in (64, 128):
            keys = synthetic_keys(8, LONG[0], width).to(device, dtype)
            centroids = keys[:, initial_positions(LONG[0], LONG[0] // 80, SEED).to(device)].float()
            run = partial(fused.kmeans_assign, keys, centroids, metric="l2")
            name = fused.assign_name(keys)
            best[name] = tuning.tune(name, fused.CANDIDATES["kmeans_assign"], run, device)
    labels = kmeans_assign(keys, centroids, metric="l2")
    update = partial(fused.kmeans_update, keys.to(torch.bfloat16), labels, centroids.shape[1])
    best["kmeans_update"] = tuning.tune("kmeans_update", fused.CANDIDATES["kmeans_update"], update, device)
    return best


def race_of_iterations(keys: Tensor, n_clusters: int) -> Row:
    """Lloyd's algorithm against scikit-learn, from the same initial keys with the same number of iterations.

    scikit-learn assigns once more after its last update; `with_final_assignment` does so too, which makes the labels
    the same.
    """
    from sklearn.cluster import KMeans

    start = initial_positions(keys.shape[1], n_clusters, SEED)

    def ours(iterations: int = ITERATIONS) -> Any:
        return kmeans(keys, n_clusters, metric="l2", max_iter=iterations, seed=SEED)

    def theirs() -> list[Any]:
        options: Any = {"n_init": 1, "max_iter": ITERATIONS, "tol": 0, "algorithm": "lloyd"}
        return [KMeans(n_clusters, init=head[start].numpy(), **options).fit(head.numpy()) for head in keys]

    with quiet():
        final = partial(ours, ITERATIONS + 1)
        times = alternate({"ours": ours, "with_final_assignment": final, "scikit_learn": theirs})
        models = theirs()
    labels = np.stack([model.labels_ for model in models])
    row = {"name": f"k-means, C = {n_clusters}, {ITERATIONS} iterations", **medians(times, "ms")}
    row |= {
        "ratio": paired_ratio(times["ours"], times["scikit_learn"]),
        "ratio_with_final_assignment": paired_ratio(times["with_final_assignment"], times["scikit_learn"]),
        "inertia_ratio": inertia(keys, ours().labels) / sum(model.inertia_ for model in models),
        "same_labels_with_final_assignment": float(np.mean(final().labels.numpy() == labels)),
    }
    assert abs(row["inertia_ratio"] - 1) < 0.01, row
    return row


def race_to_inertia(keys: Tensor, n_clusters: int) -> Row:
    """Time to match each baseline's inertia after 10 iterations.

    ratio_to_<baseline> is ours / theirs in time, inertia_ratio_to_<baseline> in inertia (at most 1), and
    iterations_for_<baseline> the number of our iterations. `ratio` is the ratio to scikit-learn, if it is installed.
    """
    runs, missing = competitors(keys.device)
    heads, length, width = keys.shape
    row: Row = {
        "name": f"k-means, {heads} x {length} x {width}, C = {n_clusters}, to the inertia of {ITERATIONS} iterations"
    }
    for name, run in runs.items():
        with quiet():
            their_inertia = inertia(keys, run(keys, n_clusters))
            iterations, our_inertia = fewest_iterations(keys, n_clusters, their_inertia)
            ours, theirs = partial(relaxed, keys, n_clusters, iterations), partial(run, keys, n_clusters)
            times = alternate(waiting({"ours": ours, name: theirs}, keys.device), rounds=5)
        milliseconds = medians(times, "ms")
        row |= {
            f"{name}_ms": milliseconds[f"{name}_ms"],
            f"ours_for_{name}_ms": milliseconds["ours_ms"],
            f"ratio_to_{name}": paired_ratio(times["ours"], times[name]),
            f"inertia_ratio_to_{name}": our_inertia / their_inertia,
            f"iterations_for_{name}": iterations,
        }
    if "scikit_learn" in runs:
        row["ratio"] = row["ratio_to_scikit_learn"]
    if missing:
        row["missing"] = ", ".join(missing)
    return row


def race_of_forms(keys: Tensor, n_clusters: int) -> Row:
    """One assignment and one update on a GPU, fused against plain torch."""
    centroids = keys[:, initial_positions(keys.shape[1], n_clusters, SEED).to(keys.device)].float()
    labels = kmeans_assign(keys, centroids, metric="l2")
    row: Row = {"name": f"k-means steps, {' x '.join(map(str, keys.shape))}, C = {n_clusters}"}
    steps: dict[str, Callable[[str], Any]] = {
        "assign": lambda impl: kmeans_assign(keys, centroids, metric="l2", impl=impl),
        "update": lambda impl: kmeans_update(keys, labels, n_clusters, impl=impl),
    }
    for step, run in steps.items():
        times = alternate({f"{step}_{impl}": synchronized(partial(run, impl)) for impl in ("fused", "naive")})
        row |= medians(times, "ms")
        row[f"{step}_ratio_to_naive"] = paired_ratio(times[f"{step}_fused"], times[f"{step}_naive"])
    return row


def relaxed(keys: Tensor, n_clusters: int, iterations: int) -> Tensor:
    """Labels of our over-relaxed k-means."""
    return kmeans(keys, n_clusters, metric="l2", max_iter=iterations, seed=SEED, relaxation=RELAXATION).labels


def fewest_iterations(keys: Tensor, n_clusters: int, wanted: float) -> tuple[int, float]:
    """The number of our iterations for an inertia of at most `wanted`, and the inertia reached."""
    for iterations in range(2, 51):
        reached = inertia(keys, relaxed(keys, n_clusters, iterations))
        if reached <= wanted:
            return iterations, reached
    raise AssertionError(f"k-means, C = {n_clusters}: got inertia {reached} after 50 iterations; wanted {wanted}")


def inertia(keys: Tensor, labels: Tensor) -> float:
    """Sum of squared distances of keys [H, L, D] to the means of their clusters, in float64."""
    total = 0.0
    for head, head_labels in zip(keys.double(), labels, strict=True):
        count = int(head_labels.max()) + 1
        sums = torch.zeros(count, head.shape[1], dtype=head.dtype, device=head.device).index_add_(0, head_labels, head)
        means = sums / torch.bincount(head_labels, minlength=count).clamp(min=1)[:, None]
        total += (head - means[head_labels]).square().sum().item()
    return total


def competitors(device: torch.device) -> tuple[dict[str, Labelling], list[str]]:
    """The installed baselines for this device, and the names of those not installed."""
    known: dict[str, tuple[str, Labelling]] = {"fastkmeans": ("fastkmeans", _fastkmeans)}
    if device.type == "cuda":
        known["flash_kmeans"] = ("flash_kmeans", _flash_kmeans)
    else:
        known |= {"scikit_learn": ("sklearn", _scikit_learn), "faiss": ("faiss", _faiss)}
    installed = {name: run for name, (module, run) in known.items() if importlib.util.find_spec(module)}
    return installed, [name for name in known if name not in installed]


def _scikit_learn(keys: Tensor, n_clusters: int) -> Tensor:
    from sklearn.cluster import KMeans

    start = initial_positions(keys.shape[1], n_clusters, SEED).numpy()
    options: Any = {"n_init": 1, "max_iter": ITERATIONS, "algorithm": "lloyd"}  # tol: the default
    labels = [KMeans(n_clusters, init=head[start], **options).fit(head).labels_ for head in keys.numpy()]
    return torch.from_numpy(np.stack(labels)).long()


def _faiss(keys: Tensor, n_clusters: int) -> Tensor:
    import faiss

    start = initial_positions(keys.shape[1], n_clusters, SEED).numpy()
    labels = []
    for head in keys.numpy():
        options: Any = {"niter": ITERATIONS, "seed": SEED, "min_points_per_centroid": 1}  # avoids a warning
        trained = faiss.Kmeans(keys.shape[2], n_clusters, **options)
        trained.train(head, init_centroids=head[start])
        labels.append(trained.assign(head)[1])
    return torch.from_numpy(np.stack(labels))


def _fastkmeans(keys: Tensor, n_clusters: int) -> Tensor:
    from fastkmeans import FastKMeans

    options: Any = {"niter": ITERATIONS, "gpu": keys.is_cuda, "seed": SEED}
    heads = keys.float().cpu().numpy()
    labels = [FastKMeans(keys.shape[2], n_clusters, **options).fit_predict(head) for head in heads]
    return torch.from_numpy(np.stack(labels)).to(keys.device)


def _flash_kmeans(keys: Tensor, n_clusters: int) -> Tensor:
    from flash_kmeans import batch_kmeans_Euclid

    start = keys[:, initial_positions(keys.shape[1], n_clusters, SEED).to(keys.device)]
    labels: Tensor = batch_kmeans_Euclid(keys, n_clusters, max_iters=ITERATIONS, tol=0.0, init_centroids=start)[0]
    return labels.long()


def synthetic_keys(heads: int, length: int, width: int) -> Tensor:
    """Keys [H, L, D] around 200 Gaussian centres."""
    generator = torch.Generator().manual_seed(SEED)
    centers = torch.randn(heads, 200, width, generator=generator)
    which = torch.randint(200, (length,), generator=generator)
    return centers[:, which] + torch.randn(heads, length, width, generator=generator)


@contextmanager
def quiet() -> Iterator[None]:
    """A context without scikit-learn's warning that 10 iterations may not converge."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
