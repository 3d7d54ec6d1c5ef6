"""Which tokens matter, and which are attended."""

from __future__ import annotations

import plotly.graph_objects as go
import torch

from families import figure, title
from kvviz import plots
from kvviz.clustering import kmeans
from notebooks.runs import Runs


@figure("ClusterKV fig. 3a")
def importance_drift(runs: Runs) -> go.Figure:
    """Tokens that one step could do without are among the most important of another."""
    return plots.importance_drift(runs.trace("prose"), 14, 0)


@figure("ClusterKV fig. 3b")
def page_fragmentation(runs: Runs) -> go.Figure:
    """Important tokens lie scattered: most pages hold a few of them, and the rest of each page is fetched in vain."""
    return plots.page_fragmentation(runs.trace("prose"), 14, 0)


@figure("PQCache fig. 6")
def attention_distribution(runs: Runs) -> go.Figure:
    """Attention weights from the largest to the smallest: how few tokens hold most of them, and a power law's fit."""
    return plots.attention_distribution(runs.trace("prose"), 14)


@figure("ClusterKV fig. 2 and 4")
def semantic_space(runs: Runs) -> go.Figure:
    """The keys of one head in two dimensions, a colour a cluster: a cluster's tokens lie together, wherever they stand
    in the text.
    """
    keys = torch.tensor(runs.trace("prose").keys[14][0], dtype=torch.float32)
    clusters = kmeans(keys, 24)
    return plots.semantic_space(
        runs.trace("prose"), 14, 0, clusters=clusters.labels.numpy(), centroids=clusters.centroids.numpy(),
        projection="tsne", max_points=1200,
    )  # fmt: skip


@figure("ClusterKV fig. 2 and 4")
def semantic_space_attended(runs: Runs) -> go.Figure:
    """The same keys by attention at one step: what ClusterKV attended lies together, with the heaviest among it."""
    recording = runs.recordings("decode")["clusterkv"]
    keys = runs.trace("prose").keys[14][0, : recording.visible(24)]
    return plots.semantic_space(keys, 14, 0, recording=recording, step=24, projection="tsne")


@figure("ClusterKV fig. 1, CTkvr fig. 1")
def selection_map(runs: Runs) -> go.Figure:
    """What each method attended step by step, beside what exact attention would have taken at the same budget."""
    return plots.selection_map(list(runs.recordings("decode").values()), 14, steps=(0, 24))


@figure("PyramidKV fig. 1")
def layer_budgets(runs: Runs) -> go.Figure:
    """How many tokens each layer and head attends: PyramidKV's slope beside methods that give every layer the same."""
    table = runs.table("layer_budgets")
    grids = {
        name: own.pivot_table("attended_tokens", "layer", "head").to_numpy()
        for name, own in table.groupby("method", sort=False)
    }
    return plots.layer_budgets(grids, title=title(table, "Tokens attended by layer and head"))


@figure("none of the papers")
def budget_ledger(runs: Runs) -> go.Figure:
    """Where the tokens and bytes of each method go at the same budget."""
    return plots.budget_ledger(runs.table("ledgers"))
