"""Figures: pure functions from data to a `plotly.graph_objects.Figure`; they show nothing and load no model.

Importing this package registers the plotly templates "kvviz_light" and "kvviz_dark". A figure follows the theme of the
notebook or page that shows it; `dark=True` draws it dark everywhere, for files too.
"""

from __future__ import annotations

from .ablation import ablation
from .budgets import layer_budgets
from .cosine_similarity import key_similarity, query_similarity_by_distance, similarity_by_distance
from .costs import index_build_time, throughput_by_batch
from .export import save
from .fragmentation import page_fragmentation
from .importance_curves import attention_distribution, importance_drift
from .iteration_fits import iteration_fit
from .latency import latency
from .ledger_bars import budget_ledger
from .long_generations import long_generation
from .memory_curves import hit_rate, kv_memory
from .misses import evidence, loss_by_head, loss_stages
from .needles import needle_grid
from .overlap import query_overlap
from .paired import paired_differences
from .pareto_fronts import pareto
from .recall import recall_by_budget
from .score_and_perplexity import perplexity_by_length, score_by_budget
from .selection_maps import selection_map
from .semantic import semantic_space
from .theme import cluster_color, cluster_hue, method_style, register
from .timeline_chart import timeline

register()

__all__ = [
    "ablation",
    "attention_distribution",
    "budget_ledger",
    "cluster_color",
    "cluster_hue",
    "evidence",
    "hit_rate",
    "importance_drift",
    "index_build_time",
    "iteration_fit",
    "key_similarity",
    "kv_memory",
    "latency",
    "layer_budgets",
    "long_generation",
    "loss_by_head",
    "loss_stages",
    "method_style",
    "needle_grid",
    "page_fragmentation",
    "paired_differences",
    "pareto",
    "perplexity_by_length",
    "query_overlap",
    "query_similarity_by_distance",
    "recall_by_budget",
    "save",
    "score_by_budget",
    "selection_map",
    "semantic_space",
    "similarity_by_distance",
    "throughput_by_batch",
    "timeline",
]
