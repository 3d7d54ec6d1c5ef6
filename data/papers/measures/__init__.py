"""Measurements for the papers' figures and tables that no other command makes: one function per measurement.

A function takes a model and its sizes, and returns rows (dictionaries of numbers and text). Its default sizes are those
of the stored results; the test runs it at `small` sizes on a tiny model. `make papers ARGS="--measure NAME"` stores the
rows in data/papers/measured, with the sizes, seed, versions and hardware.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Rows = list[dict[str, Any]]
SEED = 0
MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Measure:
    """A measurement: its function, its small sizes, and whether it needs a GPU."""

    run: Callable[..., Rows]
    small: dict[str, Any]
    gpu: bool

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the stored results."""
        parameters = list(inspect.signature(self.run).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}


MEASURES: dict[str, Measure] = {}


def measure(*, gpu: bool = False, **small: Any) -> Callable[[Callable[..., Rows]], Callable[..., Rows]]:
    """A decorator that adds a function `(lm, **sizes) -> rows` to MEASURES under its name."""

    def add(run: Callable[..., Rows]) -> Callable[..., Rows]:
        assert run.__name__ not in MEASURES, f"{run.__name__}: two measurements"
        MEASURES[run.__name__] = Measure(run, small, gpu)
        assert small.keys() <= MEASURES[run.__name__].sizes.keys(), f"{run.__name__}: small sizes that it does not take"
        return run

    return add


def texts(lm: Any, tokens: int, count: int) -> list[Any]:
    """`count` pieces [1, tokens] of prose that do not overlap: token ids."""
    from notebooks.runs.recipes import manual

    ids = lm.encode(manual())
    step = max(tokens, ids.shape[1] // count)
    pieces = [ids[:, start : start + tokens] for start in range(0, step * count, step)]
    assert all(piece.shape[1] == tokens for piece in pieces), f"{count} x {tokens} tokens: the text is too short"
    return pieces
