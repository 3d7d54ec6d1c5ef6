"""Tasks with known answers: a file or a folder each. A new one here is all that a new task needs."""

from __future__ import annotations

import math
from typing import Any

from ..errors import InvalidInputError
from .base import REGISTRY, Placement, Sample, Task, Turn
from .needle import NeedleSample, needle_sample, needle_samples

__all__ = [
    "NeedleSample", "Placement", "Sample", "Task", "Turn", "create", "get", "names", "needle_sample", "needle_samples",
    "resolve", "table",
]  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of all tasks found, sorted."""
    return REGISTRY.names()


def get(name: str) -> type[Task]:
    """The task class of that name; raises UnknownNameError with near matches."""
    return REGISTRY.find(name)


def create(name: str, **values: Any) -> Task:
    """A task by name, with its fields.

    Raises UnknownNameError for an unknown task or field, InvalidInputError for a value out of range.
    """
    return REGISTRY.create(name, **values)


def resolve(task: str | Task) -> Task:
    """A task from its name, or the task itself; raises InvalidInputError for one that cannot score an answer."""
    resolved = create(task) if isinstance(task, str) else task
    if not isinstance(resolved, Task):
        raise InvalidInputError("task", type(task).__name__, "a name of kvviz.tasks.names(), or a kvviz.tasks.Task")
    if resolved.measures == "answer" and type(resolved).score is Task.score:
        got = f"{type(resolved).__name__}, which has no score"
        raise InvalidInputError("task", got, "a method score(turn, text), which returns a number from 0 to 1")
    return resolved


def table() -> str:
    """A Markdown table of all tasks: name, what it is, metric, what chance reaches, source."""

    def chance(task: type[Task]) -> str:
        ends = dict.fromkeys((min(task.chances()), max(task.chances())))
        return " to ".join(f"{end:.2g}" for end in ends if not math.isnan(end))

    return REGISTRY.table(
        {
            "task": lambda task: task.title,
            "metric": lambda task: task.metric,
            "chance": chance,
            "source": lambda task: task.source,
        }
    )
