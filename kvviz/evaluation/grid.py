"""What is to be run: samples of tasks, and every method and budget on each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InvalidInputError
from ..generation.holding import Hold, held_budgets
from ..generation.method_cells import Cell, checked_list, method_cells
from ..methods.base import Method
from ..metrics.byte_budgets import Budget
from ..tasks import Task, resolve
from ..trace.edits import Edit


@dataclass(frozen=True)
class Example:
    """One example of a task; all cells share its prefill."""

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


def examples(tasks: Sequence[str | Task], lengths: Sequence[int], samples: int, seed: int) -> list[Example]:
    """Every sample, those of one index first, so that a grid that is stopped has some of everything.

    Raises InvalidInputError for no task, length or sample, two configurations of one task under one name and
    placement, and what `kvviz.tasks.resolve` raises.
    """
    resolved = [resolve(task) for task in checked_list("evaluate: tasks", tasks)]
    for length in checked_list("evaluate: lengths", lengths):
        _check_int("lengths", length, least=1)
    _check_int("samples", samples, least=1)
    _check_int("seed", seed, least=0)
    named = [(task.name, task.placement) for task in resolved]
    for name, placement in named:
        if named.count((name, placement)) > 1:
            got = f"{name!r} twice with the question {placement!r}"
            raise InvalidInputError(
                "evaluate: tasks", got, "one configuration per task and placement: run the others separately"
            )
    return [
        Example(task, length, index, seed)
        for index in range(samples)
        for length in dict.fromkeys(lengths)
        for task in resolved
    ]


def cells(
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    budgets: Sequence[Budget | str],
    edits: Mapping[str, Edit] | None = None,
    logprobs: bool = False,
    hold: Hold | None = None,
) -> list[Cell]:
    """Every method at every budget; those that ignore it have one cell. With `edits`, each once more with every edit.

    `hold` as for `kvviz.compare`. An edited cell's label is "label, name of the edit", and its config has the edit.

    `methods` as for `kvviz.generation.method_cells.method_cells`, which raises for what it refuses. Raises
    InvalidInputError for no budget where a method needs one, too.
    """
    listed = held_budgets("evaluate", checked_list("evaluate: budgets", budgets, least=0), hold)
    all_cells = method_cells("evaluate", methods, listed, keep_refused=True)
    for cell in all_cells:
        if cell.budget is not None and not budgets:
            raise InvalidInputError("evaluate: budgets", f"none for {cell.label!r}", "at least one")
    all_cells += [_edited(cell, name, edit) for name, edit in (edits or {}).items() for cell in all_cells]
    return [replace(cell, logprob=logprobs) for cell in all_cells]


def _edited(cell: Cell, name: str, edit: Edit) -> Cell:
    if not isinstance(edit, Edit):
        raise InvalidInputError(f"evaluate: edits[{name!r}]", type(edit).__name__, "an Edit, such as kvviz.exact()")
    return replace(cell, label=f"{cell.label}, {name}", config={**cell.config, "edit": repr(edit)}, edit=edit)


def _check_int(what: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidInputError(f"evaluate: {what}", repr(value), f"an int >= {least}")


def _digest(parts: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=12).hexdigest()
