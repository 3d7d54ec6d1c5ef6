"""Iteration models: how many iterations of clustering fit into the computation that hides it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError, UnknownNameError
from .product_quantization import cluster_parts, product_quantize

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ClusteringTime", "ComputeTime", "IterationModel", "fit_iterations", "profile_clustering", "profile_compute"]

Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True)
class ClusteringTime:
    """The measured seconds of `iterations` iterations of clustering over `tokens` tokens."""

    tokens: int
    iterations: int
    seconds: float


@dataclass(frozen=True)
class ComputeTime:
    """The measured seconds of one layer's prefill of `tokens` tokens."""

    tokens: int
    seconds: float


@dataclass(frozen=True)
class IterationModel:
    """Two fits of measured seconds, and the number of iterations that one layer's computation hides.

    Clustering takes alpha1 + beta1·s·T seconds for s tokens and T iterations, the layer's computation alpha2 + beta2·s
    + gamma2·s² (PQCache, arXiv 2407.12820, eq. 1 and 2). `clustering` and `compute` are the measurements of the fits.
    `least` and `most` clip the iterations; the paper names no limits, 3 and 300 are those of its code.
    """

    alpha1: float
    beta1: float
    alpha2: float
    beta2: float
    gamma2: float
    clustering: tuple[ClusteringTime, ...] = ()
    compute: tuple[ComputeTime, ...] = ()
    least: int = 3
    most: int = 300

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise InvalidInputError("IterationModel: least, most", (self.least, self.most), "1 <= least <= most")
        if not self.beta1 > 0:
            wanted = "above 0: seconds that grow with tokens times iterations; measure longer inputs"
            raise InvalidInputError("IterationModel: beta1", self.beta1, wanted)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> IterationModel:
        """The model whose fields `dataclasses.asdict` or a JSON file has written: plain dicts, lists and numbers.

        Raises UnknownNameError for an unknown field, and InvalidInputError for a missing one.
        """
        measurements: dict[str, type[ClusteringTime | ComputeTime]] = {
            "clustering": ClusteringTime, "compute": ComputeTime,
        }  # fmt: skip
        values = {
            name: tuple(_from_config(measurements[name], point) for point in value) if name in measurements else value
            for name, value in config.items()
        }
        return _from_config(cls, values)

    def clustering_seconds(self, tokens: int, iterations: int) -> float:
        """Fitted seconds of clustering (eq. 1)."""
        return self.alpha1 + self.beta1 * tokens * iterations

    def compute_seconds(self, tokens: int) -> float:
        """Fitted seconds of one layer's computation (eq. 2)."""
        return self.alpha2 + self.beta2 * tokens + self.gamma2 * tokens**2

    def max_iterations(self, tokens: int) -> int:
        """The most iterations whose fitted seconds do not exceed the layer's (eq. 3), clipped to `least` and `most`.

        Raises InvalidInputError for fewer than one token.
        """
        if tokens < 1:
            raise InvalidInputError("max_iterations: tokens", tokens, "at least 1")
        exact = (self.compute_seconds(tokens) - self.alpha1) / (self.beta1 * tokens)
        return min(max(math.floor(min(exact, self.most)), self.least), self.most)

    def table(self) -> pd.DataFrame:
        """A table of measurements and fits: work, tokens, iterations, seconds, fitted_s, residual_s."""
        import pandas as pd  # here, because it takes a second to load and clustering does not need it

        rows: list[tuple[str, int, int | None, float, float]] = [
            ("clustering", p.tokens, p.iterations, p.seconds, self.clustering_seconds(p.tokens, p.iterations))
            for p in self.clustering
        ]
        rows += [("one layer", p.tokens, None, p.seconds, self.compute_seconds(p.tokens)) for p in self.compute]
        table = pd.DataFrame(rows, columns=["work", "tokens", "iterations", "seconds", "fitted_s"])
        table["iterations"] = table["iterations"].astype("Int64")
        return table.assign(residual_s=table["seconds"] - table["fitted_s"])

    def describe(self) -> str:
        """A text with both fits, their largest residuals, and the iterations allowed at the measured lengths."""
        lines = [
            f"clustering: {self.alpha1:.3g} s + {self.beta1:.3g} s · tokens · iterations"
            + _worst(p.seconds - self.clustering_seconds(p.tokens, p.iterations) for p in self.clustering),
            f"one layer:  {self.alpha2:.3g} s + {self.beta2:.3g} s · tokens + {self.gamma2:.3g} s · tokens²"
            + _worst(p.seconds - self.compute_seconds(p.tokens) for p in self.compute),
        ]
        lengths = sorted({p.tokens for p in self.clustering} | {p.tokens for p in self.compute})
        allowed = ", ".join(f"{self.max_iterations(tokens)} at {tokens:,} tokens" for tokens in lengths)
        return "\n".join([*lines, f"iterations ({self.least} to {self.most}): {allowed or 'nothing was measured'}"])


def fit_iterations(
    clustering: Iterable[ClusteringTime], compute: Iterable[ComputeTime], *, least: int = 3, most: int = 300
) -> IterationModel:
    """The IterationModel of measured seconds; both curves are fitted by least squares.

    Raises InvalidInputError for clusterings with fewer than 2 different products of tokens and iterations, computations
    with fewer than 3 different lengths, and clustering times that do not grow with the product.
    """
    clustering, compute = tuple(clustering), tuple(compute)
    work = np.array([float(point.tokens * point.iterations) for point in clustering])
    lengths = np.array([float(point.tokens) for point in compute])
    _check_distinct("clustering", work, 2)
    _check_distinct("compute", lengths, 3)
    alpha1, beta1 = _fit(work, [point.seconds for point in clustering], 1)
    alpha2, beta2, gamma2 = _fit(lengths, [point.seconds for point in compute], 2)
    return IterationModel(alpha1, beta1, alpha2, beta2, gamma2, clustering, compute, least, most)


def profile_clustering(
    lengths: Sequence[int] = (1024, 2048, 4096, 8192),
    iterations: Sequence[int] = (2, 5, 10),
    *,
    n_heads: int,
    head_dim: int,
    n_partitions: int = 2,
    n_bits: int = 6,
    device: str | torch.device = "cpu",
    repeats: int = 3,
    clock: Clock = time.perf_counter,
) -> tuple[ClusteringTime, ...]:
    """Seconds of one layer's clustering, for each pair of `lengths` and `iterations`: the fastest of `repeats` runs.

    The keys [n_heads, L, head_dim] are random. If they converge earlier, the result has the iterations that were made,
    not those requested. Raises InvalidInputError as `product_quantize` does.
    """
    points = []
    for tokens in lengths:
        keys = torch.randn(n_heads, tokens, head_dim, generator=torch.Generator().manual_seed(tokens)).to(device)
        for max_iter in iterations:
            fields = {"n_partitions": n_partitions, "n_bits": n_bits, "max_iter": max_iter}
            n_iter = int(cluster_parts(keys, **fields).n_iter.max())
            seconds = _fastest_of(partial(_quantize, keys, fields), repeats, clock)
            points.append(ClusteringTime(tokens, n_iter, seconds))
    return tuple(points)


def profile_compute(
    compute: Callable[[int], object],
    lengths: Sequence[int] = (1024, 2048, 4096, 8192),
    *,
    n_layers: int = 1,
    repeats: int = 3,
    clock: Clock = time.perf_counter,
) -> tuple[ComputeTime, ...]:
    """Seconds of one layer's computation at each of `lengths`: the fastest of `repeats` runs of `compute(tokens)`.

    `compute` runs `n_layers` layers and returns when they are finished; on a GPU it must end with a synchronisation.
    With a model: `profile_compute(lambda n: lm.model(ids[:, :n], logits_to_keep=1), n_layers=lm.geometry.n_layers)`.
    """
    return tuple(
        ComputeTime(tokens, _fastest_of(partial(compute, tokens), repeats, clock) / n_layers) for tokens in lengths
    )


def _from_config(cls: type[T], config: Mapping[str, Any]) -> T:
    """The dataclass with these fields."""
    known = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]  # only dataclasses get here
    for name in config:
        if name not in known:
            raise UnknownNameError(f"{cls.__name__}: field", name, known)
    missing = [name for name, default in known.items() if name not in config and default is MISSING]
    if missing:
        raise InvalidInputError(cls.__name__, f"no {', '.join(missing)}", f"all of {', '.join(known)}")
    return cls(**config)


def _quantize(keys: Tensor, fields: dict[str, int]) -> None:
    product_quantize(keys, **fields).codes.cpu()  # the copy waits for the device


def _fastest_of(run: Callable[[], object], repeats: int, clock: Clock) -> float:
    """The seconds of the fastest of `repeats` runs after a warm-up; other programs can only add time."""
    if repeats < 1:
        raise InvalidInputError("profile: repeats", repeats, "at least 1")
    run()
    fastest = math.inf
    for _ in range(repeats):
        started = clock()
        run()
        fastest = min(fastest, clock() - started)
    return fastest


def _fit(sizes: NDArray[np.float64], seconds: Sequence[float], degree: int) -> list[float]:
    """Least-squares coefficients, the constant first. Sizes are scaled to 1 first: s² next to 1 would lose digits."""
    unit = sizes.max()
    powers = np.vander(sizes / unit, degree + 1, increasing=True)
    coefficients = np.linalg.lstsq(powers, np.asarray(seconds, dtype=np.float64), rcond=None)[0]
    return [float(value / unit**power) for power, value in enumerate(coefficients)]


def _check_distinct(name: str, sizes: NDArray[np.float64], least: int) -> None:
    count = len(np.unique(sizes))
    if count < least:
        raise InvalidInputError(f"fit_iterations: {name}", f"{count} different sizes", f"at least {least}")


def _worst(residuals: Iterable[float]) -> str:
    largest = max(map(abs, residuals), default=None)
    return "" if largest is None else f" (off by at most {largest:.3g} s)"
