"""The similarity of keys and of queries."""

from __future__ import annotations

import plotly.graph_objects as go

from families import figure
from kvviz import plots
from notebooks.runs import Runs


@figure("CentroidKV fig. 2")
def key_similarity(runs: Runs) -> go.Figure:
    """Keys of nearby tokens are similar: the bright diagonal, wider in some heads than in others."""
    return plots.key_similarity(runs.trace("layers"), layers=[8, 20], size=80)


@figure("CentroidKV fig. 3")
def similarity_by_distance(runs: Runs) -> go.Figure:
    """How fast the similarity of two keys falls with their distance, and how close this is to a convex curve.

    CentroidKV's theorem assumes a falling, convex curve.
    """
    return plots.similarity_by_distance(runs.trace("layers"))


@figure("CTkvr fig. 2a")
def query_similarity_by_distance(runs: Runs) -> go.Figure:
    """The cosine similarity of two queries by distance, and the value that CTkvr reports for its models."""
    return plots.query_similarity_by_distance(runs.trace("prose"))


@figure("CTkvr fig. 2b, appendix A")
def query_overlap(runs: Runs) -> go.Figure:
    """Similar queries attend to the same keys: one dot per pair, the trend, and where the theorem guarantees it."""
    return plots.query_overlap(runs.trace("prose"), 14, k=64)
