"""Tasks with known answers: a file or a folder each. A new one here is all that a new task needs."""

from __future__ import annotations

import importlib
import math
import pkgutil
from dataclasses import fields
from functools import cache
from typing import Any

from ..errors import InvalidInputError, UnknownNameError
from .base import REGISTRY, Placement, Sample, Task, Turn
from .needle import NeedleSample, needle_sample, needle_samples

__all__ = [
    "NeedleSample", "Placement", "Sample", "Task", "Turn", "create", "get", "names", "needle_sample", "needle_samples",
    "resolve", "table",
]  # fmt: skip


@cache
def _discover() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def names() -> tuple[str, ...]:
    """Names of all tasks found, sorted."""
    _discover()
    return tuple(sorted(REGISTRY))


def get(name: str) -> type[Task]:
    """The task class of that name; raises UnknownNameError with near matches."""
    _discover()
    if name not in REGISTRY:
        raise UnknownNameError("task", name, REGISTRY)
    return REGISTRY[name]


def create(name: str, **values: Any) -> Task:
    """A task by name, with its fields.

    Raises UnknownNameError for an unknown task or field, InvalidInputError for a value out of range.
    """
    task = get(name)
    known = {field.name for field in fields(task)}
    for field in values:
        if field not in known:
            raise UnknownNameError(f"{name}: field", field, known)
    return task(**values)


def resolve(task: str | Task) -> Task:
    """A task from its name, or the task itself; raises InvalidInputError for one that cannot score an answer."""
    found = create(task) if isinstance(task, str) else task
    if not isinstance(found, Task):
        raise InvalidInputError("task", type(task).__name__, "a name of kvviz.tasks.names(), or a kvviz.tasks.Task")
    if found.measures == "answer" and type(found).score is Task.score:
        got = f"{type(found).__name__}, which has no score"
        raise InvalidInputError("task", got, "a method score(turn, text), which returns a number from 0 to 1")
    return found


def table() -> str:
    """A Markdown table of all tasks: name, what it is, metric, what chance reaches, source."""
    rows = ["| name | task | metric | chance | source |", "|---|---|---|---|---|"]
    for name in names():
        task = REGISTRY[name]
        ends = dict.fromkeys((min(task.chances()), max(task.chances())))
        chance = " to ".join(f"{end:.2g}" for end in ends if not math.isnan(end))
        rows.append(f"| `{name}` | {task.title} | {task.metric} | {chance} | {task.source} |")
    return "\n".join(rows)
