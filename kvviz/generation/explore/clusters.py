"""ClusterKV's clusters of one head's keys, and the steps that recalled each cluster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ... import metrics
from ...clustering.kmeans import METRICS
from ...errors import InvalidInputError, UnknownNameError
from ...methods.base import LayerContext
from ...methods.clusterkv import ClusterKV, ClusterKVState
from ...trace import Recording, Trace
from ..replaying import check_finite, trace_context

__all__ = ["METRICS", "KeyClusters", "cluster_keys", "cluster_limits", "prompt_length"]

NEAREST = 5  # nearest clusters listed per cluster
PAIRS = 4_000_000  # cosines between centroids in memory at a time


@dataclass(frozen=True, eq=False)
class KeyClusters:
    """The clusters of one KV head's prompt keys: C clusters, P prompt tokens, T steps, K nearest clusters."""

    labels: NDArray[np.int32] = field(repr=False)  # [P] cluster of each token, -1 for sinks and the recent window
    centroids: NDArray[np.float32] = field(repr=False)  # [C, D]
    sizes: NDArray[np.int32]  # [C] tokens of each cluster
    spread: NDArray[np.float32] = field(repr=False)  # [C] mean cosine of a cluster's keys to its centroid, NaN if empty
    central: NDArray[np.int32] = field(repr=False)  # [C] the token whose key has the largest such cosine, -1 if empty
    nearest: NDArray[np.int32] = field(repr=False)  # [C, K] other clusters by cosine of the centroids, -1 pads
    nearest_cosine: NDArray[np.float32] = field(repr=False)  # [C, K] those cosines, NaN pads
    taken: NDArray[np.int32] = field(repr=False)  # [T, C] tokens of each cluster that each step attended to


@torch.no_grad()
def cluster_keys(
    trace: Trace, layer: int, head: int, *, n_clusters: int | None = None, metric: str = "cosine", seed: int = 0,
    queries: int = 32, budget: int | float = 256, recording: Recording | None = None,
) -> KeyClusters:  # fmt: skip
    """The KeyClusters of one KV head, built by ClusterKV, and the tokens of each cluster that the last steps selected.

    The last `queries` positions of the trace play decode steps, as in `kvviz.replay`: the tokens before them are the
    prompt and are clustered, and `taken` counts the tokens that ClusterKV with this `budget` selects at each step.
    With a `recording` of the same text, by any method, its prompt is clustered and `taken` counts the tokens that its
    steps attended to (all query heads of the KV head together; no steps if the layer was not recorded); `queries` and
    `budget` are then ignored. A recording of ClusterKV also gives sinks, recent window and the limit on iterations.
    `n_clusters`: None means ClusterKV's rule, one cluster per 80 tokens. `metric`: "cosine", "l2" or "ip".

    Raises InvalidInputError for a layer, head, number of clusters or seed out of range, a trace too short to cluster,
    or a recording of another model or text; UnknownNameError for an unknown metric.

    Source: ClusterKV (arXiv 2412.03213), sections III-B and III-C, figures 2 and 4. Spread, central tokens and nearest
    clusters are not in the paper.
    """
    if not 0 <= head < trace.geometry.n_kv_heads:
        raise InvalidInputError("cluster_keys: head", head, f"0 to {trace.geometry.n_kv_heads - 1}")
    if metric not in METRICS:
        raise UnknownNameError("cluster_keys: metric", str(metric), METRICS)
    if not 0 <= seed < 2**32:
        raise InvalidInputError("cluster_keys: seed", seed, f"0 to {2**32 - 1}")
    default, most = cluster_limits(trace, queries=queries, recording=recording)
    count = default if n_clusters is None else n_clusters
    if not 1 <= count <= most:
        raise InvalidInputError("cluster_keys: n_clusters", count, f"1 to {most}, the number of tokens to cluster")
    prompt = prompt_length(trace, queries, recording)
    method = _method(recording, budget=budget, n_clusters=count, metric=metric, seed=seed)
    context, q, k, v = _one_head(trace, trace.check_layer(layer), head)
    state = method.build(context, q[:, :, :prompt], k[:, :, :prompt], v[:, :, :prompt])
    labels = np.full(prompt, -1, np.int32)
    order = state.order[0, 0].numpy()
    labels[order] = np.repeat(np.arange(count, dtype=np.int32), state.sizes[0, 0].numpy())
    centroids = state.centroids[0, 0].numpy()
    attended = _selected(method, state, q, k, v, prompt) if recording is None else _recorded(recording, layer, head)
    keys = k[0, 0, :prompt].numpy()
    return KeyClusters(
        labels, centroids, np.bincount(labels[labels >= 0], minlength=count).astype(np.int32),
        *_spread(keys, labels, centroids), *_nearest(centroids, labels), _taken(labels, count, attended),
    )  # fmt: skip


def cluster_limits(trace: Trace, *, queries: int = 32, recording: Recording | None = None) -> tuple[int, int]:
    """ClusterKV's number of clusters for this prompt, and the largest possible one: one cluster per clustered token.

    Raises InvalidInputError if no token is left to cluster, or for a recording of another trace.
    """
    prompt, method = prompt_length(trace, queries, recording), _method(recording)
    unclustered = method.sinks + method.recent
    most = prompt - unclustered
    if most < 1:
        wanted = f"more than {unclustered}, its sinks and recent window: capture a longer prompt"
        raise InvalidInputError("cluster the keys of a trace", f"a prompt of {prompt} tokens", wanted)
    return min(most, method.n_clusters or math.ceil(prompt / method.tokens_per_cluster)), most


def prompt_length(trace: Trace, queries: int = 32, recording: Recording | None = None) -> int:
    """The number of tokens before the decode steps, including sinks and recent window, which are not clustered.

    Raises InvalidInputError if `queries` leaves none, or for a recording of another trace.
    """
    if recording is not None:
        trace.check_recording("cluster the keys of a trace: recording", recording, recording.prompt_length)
        return recording.prompt_length
    if not isinstance(queries, int) or not 1 <= queries < len(trace):
        wanted = f"1 to {len(trace) - 1}, or a trace of a longer prompt (this one has {len(trace)} tokens)"
        raise InvalidInputError("cluster the keys of a trace: queries", queries, wanted)
    return len(trace) - queries


def _method(recording: Recording | None, **fields: Any) -> ClusterKV:
    """ClusterKV with these fields; the other fields that affect clusters are those of a recording of ClusterKV."""
    if recording is not None:
        names = ("sinks", "recent", "max_iter", "tokens_per_cluster", "n_clusters")
        config = recording.config if recording.method == ClusterKV.name else {}
        reserved = sum(config.get(name, 0) for name in ("sinks", "recent"))
        fields = {name: config[name] for name in names if name in config} | fields | {"budget": max(reserved, 256)}
    return ClusterKV(**fields)


def _one_head(trace: Trace, layer: int, head: int) -> tuple[LayerContext, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The context, queries, keys and values of this KV head as a layer: [1, G, L, D], [1, 1, L, D], [1, 1, L, D]."""
    group = trace.geometry.group_size
    kv, rows = slice(head, head + 1), slice(head * group, (head + 1) * group)
    check_finite("cluster the keys of a trace", trace, layer, kv)
    arrays = trace.queries[layer][rows], trace.keys[layer][kv], trace.values[layer][kv]
    q, k, v = (torch.from_numpy(array.astype(np.float32))[None] for array in arrays)
    return replace(trace_context(trace, layer), n_heads=group, n_kv_heads=1), q, k, v


def _selected(
    method: ClusterKV, state: ClusterKVState, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prompt: int
) -> Iterator[NDArray[np.int64]]:
    """Positions that ClusterKV attends to at each step after the prompt."""
    for step in range(prompt, k.shape[2]):
        token = slice(step, step + 1)
        state = method.extend(state, q[:, :, token], k[:, :, token], v[:, :, token])
        chosen = method.select(state, q[:, :, step]).indices[0].unique().numpy()
        yield chosen[chosen >= 0]


def _recorded(recording: Recording, layer: int, head: int) -> Iterator[NDArray[np.int64]]:
    """Positions that any query head of the KV head attended to, at each step of the recording."""
    if layer not in recording.layers:
        return
    for step in range(recording.steps):
        chosen = recording.indices(step, layer)
        rows = len(chosen) // recording.geometry.n_kv_heads
        attended = metrics.member_mask(chosen[head * rows : (head + 1) * rows], recording.visible(step))
        yield np.flatnonzero(attended.any(0))


def _taken(labels: NDArray[np.int32], n_clusters: int, attended: Iterator[NDArray[np.int64]]) -> NDArray[np.int32]:
    rows = []
    for positions in attended:
        clusters = labels[positions[positions < len(labels)]]
        rows.append(np.bincount(clusters[clusters >= 0], minlength=n_clusters))
    return np.asarray(rows, np.int32).reshape(-1, n_clusters)


def _spread(
    keys: NDArray[Any], labels: NDArray[np.int32], centroids: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Mean cosine of a cluster's keys to its centroid [C], and the token whose key is nearest to it [C]."""
    tokens = np.flatnonzero(labels >= 0)
    clusters, count = labels[tokens], len(centroids)
    cosine = (_unit(keys[tokens]) * _unit(centroids)[clusters]).sum(-1)
    sizes = np.bincount(clusters, minlength=count)
    mean = np.full(count, np.nan, np.float32)
    np.divide(np.bincount(clusters, cosine, minlength=count), sizes, out=mean, where=sizes > 0, casting="unsafe")
    central = np.full(count, -1, np.int32)
    best_last = np.lexsort((-tokens, cosine))  # equal cosines: the first token wins
    central[clusters[best_last]] = tokens[best_last]
    return mean, central


def _nearest(
    centroids: NDArray[np.float32], labels: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The nearest other clusters, by the cosine of the centroids and not empty [C, K], and their cosines [C, K]."""
    unit, count = _unit(centroids), len(centroids)
    k, block = min(NEAREST, count - 1), max(1, PAIRS // count)
    empty = np.setdiff1d(np.arange(count), labels)
    nearest, values = np.zeros((count, k), np.int32), np.zeros((count, k), np.float32)
    for start in range(0, count, block):
        cosine = unit[start : start + block] @ unit.T
        cosine[:, empty] = -np.inf
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -np.inf
        nearest[rows + start] = np.argsort(-cosine, axis=-1, kind="stable")[:, :k]
        values[rows + start] = np.take_along_axis(cosine, nearest[rows + start], -1)
    valid = np.isfinite(values)
    return np.where(valid, nearest, -1).astype(np.int32), np.where(valid, values, np.nan).astype(np.float32)


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    floats = vectors.astype(np.float32)
    return cast(NDArray[np.float32], floats / np.maximum(np.linalg.norm(floats, axis=-1, keepdims=True), 1e-30))
