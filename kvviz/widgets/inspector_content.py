"""Content of the cluster inspector: the keys' places on the map and their clusters, packed, and its texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from ..errors import InvalidInputError, UnknownNameError
from ..trace import Recording, Trace
from ..trace.hues import hue
from . import content

if TYPE_CHECKING:
    from ..generation.explore import KeyClusters

CACHED = 32  # clusterings per inspector: 16 kB each at 4,096 tokens
SLIDER_REACH = 5  # times ClusterKV's default number of clusters
LONG_WORK = 200_000_000  # tokens × clusters; with more, k-means takes longer than about ten seconds on one core


@dataclass(frozen=True)
class Settings:
    """The settings of a clustering: which keys, the number of clusters C, the metric of k-means and the seed."""

    layer: int
    head: int
    n_clusters: int
    metric: str
    seed: int


@dataclass(frozen=True)
class Places:
    """A head's prompt keys in two dimensions; `origin` [2] and `axes` [D, 2] project any other vector."""

    points: NDArray[np.float64] = field(repr=False)  # [P, 2]
    star: NDArray[np.float64]  # [2] the last query, scaled to the keys' mean length
    origin: NDArray[np.float64]
    axes: NDArray[np.float64] = field(repr=False)
    titles: tuple[str, str]


class Source:
    """A trace with the steps that recall its clusters: those of its last queries, or those of a recording."""

    def __init__(self, trace: Trace, queries: int, budget: int | float, recording: Recording | None) -> None:
        operation = "ClusterInspector"
        if not isinstance(trace, Trace):
            wanted = "a kvviz.Trace, such as kvviz.capture(lm, prompt)"
            raise InvalidInputError(operation, type(trace).__name__, wanted)
        if recording is not None:
            content.check(recording, f"{operation}: recording")
        if not trace.layers:
            raise InvalidInputError(operation, "a trace without layers", "a captured layer: capture(..., layers=[14])")
        from ..generation.explore import METRICS, cluster_limits, prompt_length

        self.metrics: tuple[str, ...] = tuple(METRICS)
        self.trace, self.recording = trace, recording
        self.queries, self.budget = queries, budget
        self.prompt = prompt_length(trace, queries, recording)
        self.default, self.most = cluster_limits(trace, queries=queries, recording=recording)
        self.clusters = lru_cache(CACHED)(self._clusters)
        self.places = lru_cache(CACHED)(self._places)

    def _clusters(self, settings: Settings) -> KeyClusters:
        from ..generation.explore import cluster_keys

        return cluster_keys(
            self.trace, settings.layer, settings.head, n_clusters=settings.n_clusters, metric=settings.metric,
            seed=settings.seed, queries=self.queries, budget=self.budget, recording=self.recording,
        )  # fmt: skip

    def _places(self, layer: int, head: int) -> Places:
        from ..plots.projection import project

        keys = self.trace.keys[layer][head, : self.prompt].astype(np.float64)
        group = self.trace.geometry.n_heads // self.trace.geometry.n_kv_heads
        query = self.trace.queries[layer][head * group : (head + 1) * group, -1].astype(np.float64).mean(0)
        query *= np.linalg.norm(keys, axis=-1).mean() / max(np.linalg.norm(query), 1e-30)
        width = keys.shape[1]
        # PCA is affine: the projections of 0 and of the unit vectors give that of every centroid, without a new fit.
        extra = np.concatenate([query[None], np.zeros((1, width)), np.eye(width)])
        projected, titles = project(keys, np.arange(len(keys)), extra, "pca", 0)
        star, origin, units = np.split(projected[len(keys) :], [1, 2])
        return Places(projected[: len(keys)], star[0], origin[0], units - origin, titles)

    def check_layer(self, layer: int) -> int:
        """`layer` if it was captured; raises InvalidInputError otherwise."""
        return int(self.trace.check_layer(layer))

    def check_head(self, head: int) -> int:
        """`head` if it is a KV head; raises InvalidInputError otherwise."""
        return _between("head", head, 0, self.trace.geometry.n_kv_heads - 1)

    def check_count(self, n_clusters: int) -> int:
        """`n_clusters` if there are enough tokens for it; raises InvalidInputError otherwise."""
        return _between("n_clusters", n_clusters, 1, self.most)

    def check_metric(self, metric: str) -> str:
        """`metric` if k-means supports it; raises UnknownNameError otherwise."""
        if metric not in self.metrics:
            raise UnknownNameError("metric of a ClusterInspector", str(metric), self.metrics)
        return metric

    def check_seed(self, seed: int) -> int:
        """`seed` if it is a valid seed; raises InvalidInputError otherwise."""
        return _between("seed", seed, 0, 2**31 - 1)

    def check_token(self, token: int) -> int:
        """`token` if it is a position of the prompt, or -1; raises InvalidInputError otherwise."""
        return _between("token", token, -1, self.prompt - 1)

    def first_layer(self) -> int:
        """The layer shown first: the middle one of the captured layers, or of those that were also recorded."""
        layers = self.trace.layers
        if self.recording is not None:
            layers = tuple(layer for layer in layers if layer in self.recording.layers) or layers
        return layers[len(layers) // 2]

    def slider_values(self, n_clusters: int) -> list[int]:
        """The numbers of clusters on the slider: from 1 to a few times ClusterKV's default."""
        reach = min(SLIDER_REACH * self.default, LONG_WORK // self.prompt)
        return list(range(1, min(self.most, max(reach, n_clusters, 8)) + 1))


def notes(source: Source) -> list[str]:
    """The note on a prompt that is so long that the slider stops early; else nothing."""
    if SLIDER_REACH * source.default * source.prompt <= LONG_WORK:
        return []
    reach = len(source.slider_values(1))
    return [
        f"Long prompt: the slider stops at {reach:,} clusters, and each change clusters {source.prompt:,} tokens "
        f"again, in seconds. ClusterInspector(trace, n_clusters=…) accepts up to {source.most:,}, but takes longer."
    ]


def describe(source: Source, n_clusters: int) -> dict[str, Any]:
    """The page's content that does not depend on layer, head and clusters; JSON-able."""
    trace, recording, prompt = source.trace, source.recording, source.prompt
    texts = trace.tokens if recording is None else recording.tokens
    name, budget = ("clusterkv", source.budget) if recording is None else (recording.method, recording.budget)
    steps = f", queries={source.queries}, budget={source.budget}" if recording is None else ", recording=recording"
    return {
        "model": trace.model,
        "tokens": content.texts(trace.tokens[:prompt]),
        "step_tokens": content.texts(texts[prompt:]),
        "steps_by": f"{name} · budget {budget:,}",
        "call": "kvviz.widgets.ClusterInspector(trace, ",
        "call_end": f"{steps})",
        "recorded": recording is not None,
        "layers": list(trace.layers),
        "heads": list(range(trace.geometry.n_kv_heads)),
        "metrics": list(source.metrics),
        "default": source.default,
        "counts": source.slider_values(n_clusters),
        "fixed": False,
        "notes": notes(source),
    }


def pack_places(source: Source, layer: int, head: int) -> bytes:
    """The map of one head as safetensors bytes, which js/slice.js reads."""
    places = source.places(layer, head)
    return save({
        "place": np.array([layer, head], np.int32),
        "points": places.points.astype(np.float32),
        "star": places.star.astype(np.float32),
        "titles": np.frombuffer("\n".join(places.titles).encode(), np.uint8),
    })  # fmt: skip


def pack_clusters(source: Source, settings: Settings) -> bytes:
    """The clusters as safetensors bytes, with the places of the centroids on the map."""
    clusters, places = source.clusters(settings), source.places(settings.layer, settings.head)
    return save({
        "place": np.array([settings.layer, settings.head], np.int32),
        "settings": np.array([settings.n_clusters, source.metrics.index(settings.metric), settings.seed], np.int32),
        "rings": (places.origin + clusters.centroids @ places.axes).astype(np.float32),
        "hues": hue(np.arange(len(clusters.sizes))),
        **{name: np.ascontiguousarray(getattr(clusters, name)) for name in
           ("labels", "sizes", "spread", "central", "nearest", "nearest_cosine", "taken")},
    })  # fmt: skip


def opening_token(clusters: KeyClusters) -> int:
    """The most central token of the cluster that most steps recalled; ties go to the one with more tokens attended."""
    steps, tokens = (clusters.taken > 0).sum(0), clusters.taken.sum(0)
    best = np.lexsort((clusters.sizes, tokens, steps))[-1]
    return int(clusters.central[best])


def _between(name: str, value: int, least: int, most: int) -> int:
    return content.between(f"{name} of a ClusterInspector", value, least, most)
