"""Cells: the methods at budgets that compare() and evaluate() run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ..errors import InvalidInputError
from ..methods import create, get
from ..methods.base import Method
from ..methods.fields import check_budget
from ..metrics.byte_budgets import Budget
from ..trace.edits import Edit

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """A method at a budget, with an edit or none. If its fields refuse the budget, `method` is None, `refused` why.

    With `logprob`, the first turn's answer is scored too (`kvviz.score`).
    """

    label: str
    name: str
    preset: str
    config: Mapping[str, Any]
    budget: Budget | None  # as passed; None for methods that ignore it
    method: Method | None
    refused: str = ""
    edit: Edit | None = None
    logprob: bool = False


def method_cells(
    operation: str,
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    budgets: Sequence[Budget],
    *,
    keep_refused: bool = False,
) -> list[Cell]:
    """The cells of all methods at all budgets; methods that ignore the budget have one cell.

    A string names a method, or a method and its preset as in "pqcache:official". An instance keeps its fields and runs
    at each budget. A mapping gives labels. Without budgets, each method runs at its default budget. A budget that a
    method's fields refuse is an error. With `keep_refused` it is a refused cell, unless the method refuses all budgets.

    Raises InvalidInputError, which names `operation`, for no method, a repeated label or a budget that no method
    accepts; UnknownNameError for unknown names and presets.
    """
    chosen = checked_list(f"{operation}: methods", list(methods.values()) if isinstance(methods, Mapping) else methods)
    labels = [_label(operation, method) for method in chosen]
    if isinstance(methods, Mapping):
        labels = list(methods)
    for budget in checked_list(f"{operation}: budgets", budgets, least=0):
        check_budget(f"{operation}: budgets", budget)  # an error, not a method's refusal
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidInputError(f"{operation}: methods", f"{label!r} twice", "a mapping of labels to methods")
    distinct = list(dict.fromkeys(budgets))
    pairs = zip(labels, chosen, strict=True)
    return [cell for label, method in pairs for cell in _at_budgets(label, method, distinct, keep_refused)]


def method_styles(methods: Iterable[Method]) -> dict[str, dict[str, str]]:
    """The complete style of each method by its name, as plain values, for a table's `attrs["styles"]`."""
    return {method.name: asdict(method.style.completed(method.name, method.kind)) for method in methods}


def checked_list(operation: str, values: Sequence[T], least: int = 1) -> Sequence[T]:
    """The values. Raises InvalidInputError unless they are a list of at least `least` values."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInputError(operation, repr(values), "a list")
    if len(values) < least:
        raise InvalidInputError(operation, "none", "at least one")
    return values


def _label(operation: str, method: str | Method) -> str:
    if not isinstance(method, str | Method):
        wanted = "a name of kvviz.methods.names(), or a kvviz.methods.Method"
        raise InvalidInputError(f"{operation}: methods", type(method).__name__, wanted)
    return method if isinstance(method, str) else method.name


def _at_budgets(label: str, method: str | Method, budgets: Sequence[Budget], keep_refused: bool) -> Iterator[Cell]:
    name = method.partition(":")[0] if isinstance(method, str) else method.name
    preset = (method.partition(":")[2] or "paper") if isinstance(method, str) else _preset(method)
    ignores_budget = (get(name) if isinstance(method, str) else method).ignores_budget
    if ignores_budget or not budgets:
        chosen = _created(method, name, preset)
        yield Cell(label, name, preset, chosen.config, None if ignores_budget else chosen.budget, chosen)
        return
    refusals: list[InvalidInputError] = []
    for budget in budgets:
        try:
            chosen = _created(method, name, preset, budget=budget)
        except InvalidInputError as error:
            if not keep_refused:
                raise
            refusals.append(error)
            yield Cell(label, name, preset, {"budget": budget}, budget, None, str(error))
            continue
        yield Cell(label, name, preset, chosen.config, budget, chosen)
    if len(refusals) == len(budgets):
        raise refusals[-1]


def _created(method: str | Method, name: str, preset: str, **budget: Any) -> Method:
    return create(name, preset=preset, **budget) if isinstance(method, str) else replace(method, **budget)


def _preset(method: Method) -> str:
    """The preset with the fields of a method, whatever its budget; "own" for custom fields."""
    for preset, fields in method.presets.items():
        with suppress(InvalidInputError):  # the preset's sinks and window may not fit into the budget
            if type(method)(**{**fields, "budget": method.budget}) == method:
                return preset
    return "own"
