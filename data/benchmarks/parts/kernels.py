"""Kernels compared with what a user would use instead, on the keys of one real layer."""

from __future__ import annotations

from typing import Any

from .inputs import PROMPT_TOKENS, real_trace, script


def run() -> dict[str, Any]:
    """The results of kernels/bench.py."""
    bench = script("kernels/bench.py")
    results: dict[str, Any] = bench.run(*bench.keys_of(real_trace(PROMPT_TOKENS, (15,)), 15))
    return results
