"""Budgets of the budget explorer's slider and curves."""

from __future__ import annotations

FIRST_BUDGET = 16


def budgets(prompt_length: int) -> list[int]:
    """Four budgets per octave from 16 up to the whole prompt, ascending."""
    stops = {max(prompt_length, 1)}
    octave = FIRST_BUDGET // 4
    while 4 * octave < prompt_length:
        stops.update(budget for budget in (4 * octave, 5 * octave, 6 * octave, 7 * octave) if budget < prompt_length)
        octave *= 2
    return sorted(stops)


def curve_budgets(stops: list[int]) -> list[int]:
    """The budgets of a curve's points: every second one, with the first and the last."""
    return sorted({*stops[::2], stops[0], stops[-1]})
