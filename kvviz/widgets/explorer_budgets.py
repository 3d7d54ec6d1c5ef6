"""The budgets that the budget explorer offers."""

from __future__ import annotations

FIRST_BUDGET = 16


def budgets(prompt_length: int) -> list[int]:
    """Four budgets an octave from 16, up to the whole prompt, ascending."""
    stops = {max(prompt_length, 1)}
    octave = FIRST_BUDGET // 4
    while 4 * octave < prompt_length:
        stops.update(budget for budget in (4 * octave, 5 * octave, 6 * octave, 7 * octave) if budget < prompt_length)
        octave *= 2
    return sorted(stops)


def curve_budgets(stops: list[int]) -> list[int]:
    """Every second budget, and the first and the last: the points of a curve."""
    return sorted({*stops[::2], stops[0], stops[-1]})
