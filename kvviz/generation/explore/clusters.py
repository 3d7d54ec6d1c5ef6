"""ClusterKV's clusters of one head's keys, the limits on their number, and the prompt that is clustered."""

from __future__ import annotations

import math
from typing import Any

from ...clustering.kmeans import METRICS
from ...errors import InvalidInputError, UnknownNameError
from ...methods.clusterkv import ClusterKV
from ...trace import Recording, Trace
from .group_views import group_keys, prompt_length, view_method
from .key_groups import KeyGroups

__all__ = ["METRICS", "cluster_keys", "cluster_limits"]


def cluster_keys(
    trace: Trace, layer: int, head: int, *, n_clusters: int | None = None, metric: str = "cosine", seed: int = 0,
    queries: int = 32, budget: int | float = 256, recording: Recording | None = None,
) -> KeyGroups:  # fmt: skip
    """The KeyGroups of one KV head, built by ClusterKV, and the tokens of each cluster that the last steps selected.

    The last `queries` positions of the trace play decode steps, as in `kvviz.replay`: the tokens before them are the
    prompt and are clustered, and `taken` counts the tokens that ClusterKV with this `budget` selects at each step.
    With a `recording` of the same text, by any method, its prompt is clustered and `taken` counts the tokens that its
    steps attended to (all query heads of the KV head together; no steps if the layer was not recorded); `queries` and
    `budget` are then ignored: ClusterKV ranks and cuts within the recording's budget. A recording of ClusterKV also
    gives its other fields. `n_clusters`: None means ClusterKV's rule, one cluster per 80 tokens. `metric`: "cosine",
    "l2" or "ip".

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
    return group_keys(
        trace, layer, head, "clusters", queries=queries, budget=budget, recording=recording,
        n_clusters=count, metric=metric, seed=seed,
    )  # fmt: skip


def cluster_limits(trace: Trace, *, queries: int = 32, recording: Recording | None = None) -> tuple[int, int]:
    """ClusterKV's number of clusters for this prompt, and the largest possible one: one cluster per clustered token.

    Raises InvalidInputError if no token is left to cluster, or for a recording of another trace.
    """
    prompt = prompt_length(trace, queries, recording)
    method: Any = view_method(ClusterKV.name, prompt, recording=recording)
    unclustered = method.sinks + method.recent
    most = prompt - unclustered
    if most < 1:
        wanted = f"more than {unclustered}, its sinks and recent window: capture a longer prompt"
        raise InvalidInputError("cluster the keys of a trace", f"a prompt of {prompt} tokens", wanted)
    return min(most, method.n_clusters or math.ceil(prompt / method.tokens_per_cluster)), most
