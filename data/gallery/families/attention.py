"""Which tokens are important, and which are attended to."""

from __future__ import annotations

import plotly.graph_objects as go
import torch

from families import figure, title
from kvviz import plots
from kvviz.clustering import kmeans
from notebooks.runs import Runs


@figure("ClusterKV fig. 3a")
def importance_drift(runs: Runs) -> go.Figure:
    """Tokens that are unimportant at one step can be among the most important ones at another."""
    return plots.importance_drift(runs.trace("prose"), 14, 0)


@figure("ClusterKV fig. 3b")
def page_fragmentation(runs: Runs) -> go.Figure:
    """Important tokens are scattered: most pages hold only a few, and the rest of each fetched page is wasted."""
    return plots.page_fragmentation(runs.trace("prose"), 14, 0)


@figure("PQCache fig. 6")
def attention_distribution(runs: Runs) -> go.Figure:
    """Attention weights in descending order: a few tokens hold most of the mass. With a power-law fit."""
    return plots.attention_distribution(runs.trace("prose"), 14)


@figure("ClusterKV fig. 2 and 4")
def semantic_space(runs: Runs) -> go.Figure:
    """The keys of one head in two dimensions, one colour per cluster: the keys of a cluster are close together, even if
    their tokens are far apart in the text.
    """
    keys = torch.tensor(runs.trace("prose").keys[14][0], dtype=torch.float32)
    clusters = kmeans(keys, 24)
    return plots.semantic_space(
        runs.trace("prose"), 14, 0, clusters=clusters.labels.numpy(), centroids=clusters.centroids.numpy(),
        projection="tsne", max_points=1200,
    )  # fmt: skip


@figure("ClusterKV fig. 2 and 4")
def semantic_space_attended(runs: Runs) -> go.Figure:
    """The same keys, coloured by attention at one step: the keys that ClusterKV attends to are close together, and
    include those with the largest weights.
    """
    recording = runs.recordings("decode")["clusterkv"]
    keys = runs.trace("prose").keys[14][0, : recording.visible(24)]
    return plots.semantic_space(keys, 14, 0, recording=recording, step=24, projection="tsne")


@figure("ClusterKV fig. 1, CTkvr fig. 1")
def selection_map(runs: Runs) -> go.Figure:
    """The tokens that each method attends to at each step, and those of exact attention at the same budget."""
    return plots.selection_map(list(runs.recordings("decode").values()), 14, steps=(0, 24))


@figure("PyramidKV fig. 1")
def layer_budgets(runs: Runs) -> go.Figure:
    """Tokens attended to by layer and head: PyramidKV's budgets fall with the layer, other methods' are constant."""
    table = runs.table("layer_budgets")
    grids = {
        name: rows.pivot_table("attended_tokens", "layer", "head").to_numpy()
        for name, rows in table.groupby("method", sort=False)
    }
    return plots.layer_budgets(grids, title=title(table, "Tokens attended by layer and head"))


@figure("none of the papers")
def budget_ledger(runs: Runs) -> go.Figure:
    """How each method spends its tokens and bytes at the same budget."""
    return plots.budget_ledger(runs.table("ledgers"))
