"""What methods select, and how well the model does with it."""

from __future__ import annotations

import plotly.graph_objects as go

from families import benchmarks, figure
from kvviz import plots
from notebooks.runs import Runs


@figure("ClusterKV fig. 11a")
def recall_by_budget(runs: Runs) -> go.Figure:
    """The share of the exact top tokens that each method attends to."""
    return plots.recall_by_budget(runs.table("budgets"))


@figure("ClusterKV fig. 11a")
def output_error_by_budget(runs: Runs) -> go.Figure:
    """The error of the attention output; merged tokens count here too."""
    return plots.recall_by_budget(runs.table("budgets"), metric="output_error")


@figure("ClusterKV fig. 9, CentroidKV fig. 4 and 5, CTkvr fig. 9, PQCache fig. 10a and 10c")
def score_by_budget(runs: Runs) -> go.Figure:
    """Needles found by budget, with bootstrap intervals; CTkvr and CentroidKV refuse smaller budgets."""
    return plots.score_by_budget(
        runs.table("needles").rename(columns={"correct": "needles_found"}), score="needles_found"
    )


@figure("none of the papers", width="page")
def pareto(runs: Runs) -> go.Figure:
    """Attention kept against the bytes that a method holds, metadata included, and against those that a step reads, at
    1/16, 1/8 and 1/4 of the cache's bytes. No method that could be used beats a point on the frontier with as few
    bytes.
    """
    return plots.pareto(runs.table("equal_bytes"), y="attention_mass")


@figure("ClusterKV table I, PQCache table 2, CTkvr table 1, CentroidKV table 2", width="page")
def paired_differences(runs: Runs) -> go.Figure:
    """Needles found: does each paper's method beat Quest and SnapKV on the same samples, and how sure is that?"""
    return plots.paired_differences(benchmarks.orders())


@figure("ClusterKV fig. 10")
def perplexity_by_length(runs: Runs) -> go.Figure:
    """The perplexity of prose after a compressed prompt, over all tokens up to each position."""
    return plots.perplexity_by_length(runs.table("perplexity"))


@figure("PQCache fig. 9, CTkvr fig. 5 and 14, at shorter lengths")
def needle_grid(runs: Runs) -> go.Figure:
    """Needles found by length and depth, at one budget, in prompts of 500 and 1,000 tokens."""
    table = runs.table("needles")
    return plots.needle_grid(table[table["method"].eq("full") | table["budget"].eq(256)], found="correct")


@figure("ClusterKV fig. 11b")
def ablation_clusters(runs: Runs) -> go.Figure:
    """The number of clusters: more clusters give better recall and need more metadata."""
    table = runs.table("ablations")
    return plots.ablation(
        table[table["varied"] == "n_clusters"], field="n_clusters", metric=["recall", "metadata_bytes_a_token"]
    )


@figure("ClusterKV fig. 11b")
def ablation_metric(runs: Runs) -> go.Figure:
    """The metric by which ClusterKV clusters keys."""
    table = runs.table("ablations")
    return plots.ablation(table[table["varied"] == "metric"], field="metric")


@figure("PQCache fig. 10b")
def ablation_quantization(runs: Runs) -> go.Figure:
    """The number of partitions and bits of PQCache's product quantisation."""
    table = runs.table("ablations")
    return plots.ablation(
        table[table["varied"] == "n_partitions, n_bits"],
        field="n_bits", metric=["recall", "metadata_bytes_a_token"], series=("method", "n_partitions"),
    )  # fmt: skip


@figure("PQCache fig. 12c")
def ablation_iterations(runs: Runs) -> go.Figure:
    """The number of iterations of PQCache's clustering."""
    table = runs.table("ablations")
    return plots.ablation(table[table["varied"] == "max_iter"], field="max_iter")


@figure("CTkvr fig. 10, table 15")
def ablation_probes(runs: Runs) -> go.Figure:
    """The number of lists that CTkvr probes."""
    table = runs.table("ablations")
    return plots.ablation(table[table["varied"] == "n_probes"], field="n_probes")


@figure("CentroidKV table 8")
def ablation_chunks(runs: Runs) -> go.Figure:
    """The chunk size within which CentroidKV looks for partners; the error counts merged tokens too."""
    table = runs.table("ablations")
    return plots.ablation(table[table["varied"] == "chunk_size"], field="chunk_size", metric="output_error")


@figure("none of the papers")
def ablation_pages(runs: Runs) -> go.Figure:
    """Quest's page size: smaller pages give better bounds and need more metadata."""
    table = runs.table("ablations")
    return plots.ablation(
        table[table["varied"] == "page_size"], field="page_size", metric=["recall", "metadata_bytes_a_token"]
    )
