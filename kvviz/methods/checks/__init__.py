"""Checks that every method must pass; run them on a new method with `run(MyMethod)`.

If a check does not apply to a method, the method names it in `expected_failures` with a reason, and must then fail it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base import Method
from . import choosing, counted_bytes, decoding, explaining
from .steps import smallest as smallest

Check = Callable[[type[Method]], None]

CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        choosing.selections_are_valid,
        choosing.full_budget_attends_everything,
        decoding.generated_tokens_are_seen,
        choosing.sinks_and_recent_are_kept,
        decoding.extension_equals_one_build,
        choosing.a_state_serves_every_budget,
        decoding.decoding_goes_on,
        decoding.the_budget_holds,
        decoding.the_prompt_stays_in_reach,
        decoding.dropped_tokens_stay_dropped,
        decoding.later_prompts_are_taken_in,
        choosing.inputs_are_unchanged,
        choosing.batches_are_independent,
        choosing.runs_repeat,
        choosing.every_group_works,
        choosing.degenerate_keys_work,
        choosing.config_makes_the_same_method,
        counted_bytes.bytes_are_counted,
        explaining.the_ranking_explains_the_selection,
    )
}


def run(method: type[Method]) -> dict[str, str]:
    """Run all checks on a method class; returns {check: "passed" or "expected failure: reason"}.

    Raises AssertionError if a check fails, or if an expected failure passes.
    """
    outcome = {}
    for name, check in CHECKS.items():
        reason = method.expected_failures.get(name)
        if reason is None:
            check(method)
            outcome[name] = "passed"
            continue
        try:
            check(method)
        except AssertionError:
            outcome[name] = f"expected failure: {reason}"
        else:
            raise AssertionError(f"{method.name} passes {name!r}, which it lists as an expected failure")
    return outcome
