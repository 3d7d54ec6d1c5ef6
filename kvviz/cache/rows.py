"""Batch rows of a layer with the same left padding: they share one state of the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..methods.base import Method, State
from ..offload.background import Pending


@dataclass
class Row:
    """A run of batch rows with the same left padding, and the method's state for them.

    `method` is the method with the budget in tokens that was found for a budget in bytes; None for other budgets.
    """

    rows: slice
    start: int
    state: State | Pending[State] | None = None
    method: Method | None = None


class Run(NamedTuple):
    """Batch rows with the same left padding `start`, their built state, and the method with their budget in tokens."""

    rows: slice
    start: int
    state: State
    method: Method
