"""Metrics of selections and of attention: NumPy in, NumPy out. It imports NumPy only, and SciPy when a fit needs it."""

from __future__ import annotations

from .fits import ConvexFit, LinearFit, convex_fit, linear_fit
from .growth import growth_exponent
from .importance import (
    PageFragmentation,
    PowerLaw,
    attention_weights,
    drifting_tokens,
    page_fragmentation,
    power_law,
    random_page_counts,
    sorted_mass,
    token_ranks,
    tokens_for_mass,
    top_kept,
)
from .intervals import bootstrap_interval
from .ledgers import wasted_tokens
from .memory import kv_bytes
from .selected import (
    attention_mass,
    group_members,
    member_mask,
    output_error,
    pool_argmax,
    rank_groups,
    ranked_tokens,
    recall,
    top_tokens,
)
from .similarity import (
    DistanceCurve,
    QueryPairs,
    log_distances,
    overlap_bound,
    similarity_by_distance,
    similarity_map,
    topk_overlap,
)
from .verdicts import Verdict, agreement

__all__ = [
    "ConvexFit",
    "DistanceCurve",
    "LinearFit",
    "PageFragmentation",
    "PowerLaw",
    "QueryPairs",
    "Verdict",
    "agreement",
    "attention_mass",
    "attention_weights",
    "bootstrap_interval",
    "convex_fit",
    "drifting_tokens",
    "group_members",
    "growth_exponent",
    "kv_bytes",
    "linear_fit",
    "log_distances",
    "member_mask",
    "output_error",
    "overlap_bound",
    "page_fragmentation",
    "pool_argmax",
    "power_law",
    "random_page_counts",
    "rank_groups",
    "ranked_tokens",
    "recall",
    "similarity_by_distance",
    "similarity_map",
    "sorted_mass",
    "token_ranks",
    "tokens_for_mass",
    "top_kept",
    "top_tokens",
    "topk_overlap",
    "wasted_tokens",
]
