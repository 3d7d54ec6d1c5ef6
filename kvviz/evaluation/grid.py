"""What is to be run: samples of tasks, and every method and budget on each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..errors import InvalidInputError
from ..methods import create, get
from ..methods.base import Method
from ..tasks import Task, resolve

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """A method at a budget. `method` is None where its fields refuse the budget; `refused` then says why."""

    label: str
    name: str
    preset: str
    config: Mapping[str, Any]
    budget: int | float | None  # as asked; None for methods that ignore it
    method: Method | None
    refused: str = ""


@dataclass(frozen=True)
class Unit:
    """A sample, whose prefill all cells share."""

    task: Task
    length: int
    index: int
    seed: int

    @property
    def name(self) -> str:
        """What names the sample: the same for the same task, length, number and seed."""
        return _digest([self.task.name, self.task.config, self.length, self.index, self.seed])

    def key(self, cell: Cell) -> str:
        """What names the cell of this sample: the same for the same method and budget on the same sample."""
        return _digest([self.name, cell.label, cell.name, cell.config, cell.budget])


def units(tasks: Sequence[str | Task], lengths: Sequence[int], samples: int, seed: int) -> list[Unit]:
    """Every sample, those of one index first, so that a grid that is stopped has some of everything.

    Raises InvalidInputError for no task, length or sample, two configurations of one task under one name and
    placement, and what `kvviz.tasks.resolve` raises.
    """
    found = [resolve(task) for task in _several("tasks", tasks)]
    for length in _several("lengths", lengths):
        _check_int("lengths", length, least=1)
    _check_int("samples", samples, least=1)
    _check_int("seed", seed, least=0)
    named = [(task.name, task.placement) for task in found]
    for name, placement in named:
        if named.count((name, placement)) > 1:
            got = f"{name!r} twice with the question {placement!r}"
            raise InvalidInputError(
                "evaluate: tasks", got, "one configuration a task and placement: run the others apart"
            )
    return [
        Unit(task, length, index, seed)
        for index in range(samples)
        for length in dict.fromkeys(lengths)
        for task in found
    ]


def cells(methods: Sequence[str | Method] | Mapping[str, str | Method], budgets: Sequence[int | float]) -> list[Cell]:
    """Every method at every budget; those that ignore it have one cell.

    A text names a method, or a method and its preset as in "pqcache:official". An instance keeps its fields and takes
    each budget in turn. A mapping gives labels. Raises InvalidInputError for no method, one label twice, no budget for
    a method that needs one, a budget of another kind, or a method that refuses all of them; UnknownNameError for
    unknown names.
    """
    asked = _several("methods", list(methods.values()) if isinstance(methods, Mapping) else methods)
    labels = [_label(method) for method in asked]
    if isinstance(methods, Mapping):
        labels = list(methods)
    for budget in _several("budgets", budgets, least=0):
        _check_budget(budget)
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidInputError("evaluate: methods", f"{label!r} twice", "a mapping of labels to methods")
    once = list(dict.fromkeys(budgets))
    return [cell for label, method in zip(labels, asked, strict=True) for cell in _at_budgets(label, method, once)]


def _several(what: str, values: Sequence[T], least: int = 1) -> Sequence[T]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InvalidInputError(f"evaluate: {what}", repr(values), "a list")
    if len(values) < least:
        raise InvalidInputError(f"evaluate: {what}", "none", "at least one")
    return values


def _check_int(what: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInputError(f"evaluate: {what}", repr(value), f"an int >= {least}")


def _check_budget(budget: int | float) -> None:
    """A budget that no method could take is no refusal of a method."""
    if isinstance(budget, float) and 0 < budget < 1:
        return
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        wanted = "tokens, an int >= 1, or a share of the prompt in (0, 1)"
        raise InvalidInputError("evaluate: budgets", repr(budget), wanted)


def _label(method: str | Method) -> str:
    if not isinstance(method, str | Method):
        got = type(method).__name__
        raise InvalidInputError("evaluate: methods", got, "a name of kvviz.methods.names(), or a kvviz.methods.Method")
    return method if isinstance(method, str) else method.name


def _at_budgets(label: str, method: str | Method, budgets: Sequence[int | float]) -> Iterator[Cell]:
    name = method.partition(":")[0] if isinstance(method, str) else method.name
    kind = get(name).kind if isinstance(method, str) else method.kind
    preset = (method.partition(":")[2] or "paper") if isinstance(method, str) else _preset(method)
    if name == "full" or kind == "prefill":  # decode steps attend everything
        made = _made(name, preset) if isinstance(method, str) else method
        yield Cell(label, name, preset, made.config, None, made)
        return
    if not budgets:
        raise InvalidInputError("evaluate: budgets", f"none for {label!r}", "at least one")
    refusals: list[InvalidInputError] = []
    for budget in budgets:
        try:
            made = _made(name, preset, budget=budget) if isinstance(method, str) else replace(method, budget=budget)
        except InvalidInputError as error:
            refusals.append(error)
            yield Cell(label, name, preset, {"budget": budget}, budget, None, str(error))
            continue
        yield Cell(label, name, preset, made.config, budget, made)
    if len(refusals) == len(budgets):
        raise refusals[-1]


def _made(name: str, preset: str, **values: Any) -> Method:
    return create(name, preset=preset, **values)


def _preset(method: Method) -> str:
    """The preset that a method has the fields of, whatever its budget; "own" for fields of its own."""
    for preset, fields in method.presets.items():
        with suppress(InvalidInputError):  # its sinks and window may not fit into the budget
            if type(method)(**{**fields, "budget": method.budget}) == method:
                return preset
    return "own"


def _digest(parts: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
