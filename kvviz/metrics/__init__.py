"""Numbers about selections and about attention itself: NumPy in, NumPy out, and nothing heavier is imported."""

from __future__ import annotations

from .selected import (
    attention_mass,
    group_members,
    member_mask,
    output_error,
    pool_argmax,
    rank_groups,
    recall,
    top_tokens,
)

__all__ = [
    "attention_mass",
    "group_members",
    "member_mask",
    "output_error",
    "pool_argmax",
    "rank_groups",
    "recall",
    "top_tokens",
]
