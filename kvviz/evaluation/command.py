"""The command `kvviz`: evaluations, lists of tasks and methods, reports, inspected models. Nothing is computed here.

Heavy packages are imported only when a command needs them, so that `kvviz --help` is fast.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInputError, KVVizError, MissingDependencyError

if TYPE_CHECKING:
    import click
    import pandas as pd

    from ..tasks import Task

UNSUPPORTED, REFUSED, INTERRUPTED = 1, 2, 130  # exit codes: ours, click's for a wrong call, the shells' for signal 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (by default the process's), and exit.

    Exit codes: 0; 1 for a model that `kvviz doctor` says is refused; 2 for a wrong call or a kvviz error, with one line
    on stderr; 130 after Ctrl-C.
    """
    try:
        commands = group()
    except MissingDependencyError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    commands.main(None if arguments is None else list(arguments), prog_name="kvviz")


def group() -> click.Group:
    """The commands evaluate, tasks, methods, report and doctor. Raises MissingDependencyError without click."""
    try:
        import click
    except ImportError as error:
        raise MissingDependencyError("the command kvviz", "click", "evaluate") from error
    commands = {
        "evaluate": click.Command("evaluate", callback=_evaluate, params=_options(), help=_help(_evaluate)),
        "tasks": click.Command("tasks", callback=_tasks, help=_help(_tasks)),
        "methods": click.Command("methods", callback=_methods, help=_help(_methods)),
        "report": click.Command(
            "report", callback=_report, params=[click.Argument(["results"])], help=_help(_report)
        ),
        "doctor": click.Command("doctor", callback=_doctor, params=_doctor_options(), help=_help(_doctor)),
    }  # fmt: skip
    return click.Group(
        "kvviz", commands=commands, help="Evaluate KV-cache retrieval and compression, and inspect models."
    )


def budget(text: str) -> int | float:
    """A budget as `kvviz.evaluate` takes it: "128" tokens; "25%" or "0.25" of the prompt.

    Raises InvalidInputError for a text that is not a number. The method checks the number itself.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:  # Decimal, so that "33.3%" and "0.333" are the same float, and so the same cell
        return float(Decimal(text[:-1]) / 100 if text.endswith("%") else Decimal(text))
    except InvalidOperation as error:
        raise InvalidInputError(
            "--budget", repr(text), "tokens (128) or a share of the prompt (25% or 0.25)"
        ) from error


def task(text: str) -> Task:
    """A task from its name, "needle", or from its name and fields, "needle:depths=5,placement=last".

    A value is JSON ("5", "0.5", "true", "[0, 1]"), or otherwise plain text. Raises InvalidInputError for a field
    without a value, and the errors of `kvviz.tasks.create`.
    """
    from ..tasks import create

    name, _, settings = text.partition(":")
    values: dict[str, Any] = {}
    for setting in re.split(r",(?=\w+=)", settings) if settings else ():
        field, equals, value = setting.partition("=")
        if not equals:
            raise InvalidInputError("--task", repr(text), f"{name}:field=value,field=value")
        try:
            values[field] = json.loads(value)
        except json.JSONDecodeError:
            values[field] = value
    return create(name, **values)


def means(table: pd.DataFrame) -> str:
    """Mean scores of a `kvviz.load_results` table as text: one row per method, task and length, one column per budget.

    The means and errors are those of `kvviz.evaluation.summary`. Methods that ignore the budget are in the column
    "any". A cell is "refused" if the method refused the budget, and "" if it was not run.
    """
    from . import summary

    scores = summary(table)
    named = scores.assign(
        budget=[_budget_name(value) for value in scores["budget"]],
        shown=scores["mean"].map("{:.3f}".format).where(scores["n"] > 0, "refused"),
    )
    columns = [name for _, name in sorted(set(zip(scores["budget"].fillna(0), named["budget"], strict=True)))]
    wide = named.pivot(index=["task", "placement", "length", "method"], columns="budget", values="shown")
    return str(wide[columns].fillna("").reset_index().to_string(index=False))


def _budget_name(value: float) -> str:
    if value != value:
        return "any"
    return f"{100 * value:g}%" if value < 1 else f"{value:g}"


def _options() -> list[click.Parameter]:
    import click

    def many(flag: str, kind: Any, words: str, **more: Any) -> click.Option:
        return click.Option([flag, f"{flag[2:]}s"], multiple=True, type=kind, help=f"{words} May be repeated.", **more)

    count = click.IntRange(1)
    return [
        click.Option(["--model"], default="smollm2-135m", show_default=True, help="A name, directory or .gguf file."),
        many("--task", str, "A task: niah_single_1, or with fields needle:depths=5,placement=last.", required=True),
        many("--method", str, "A method: quest, with a preset pqcache:official, or all.", required=True),
        many("--budget", str, "Tokens per head and step, 128, or a share of the prompt, 25% or 0.25."),
        many("--length", count, "Tokens of the prompt, the question included.", required=True),
        click.Option(["--samples"], type=count, default=10, show_default=True, help="Samples per task and length."),
        click.Option(["--seed"], type=int, default=0, show_default=True, help="Seed of the samples."),
        click.Option(["--jobs"], type=int, default=1, show_default=True, help="Processes; -1: one per processor."),
        click.Option(["--out"], default="results.parquet", show_default=True, help="The results file."),
    ]


def _doctor_options() -> list[click.Parameter]:
    import click

    tokens = "A number of tokens to give the memory for. May be repeated."
    return [
        click.Argument(["model"]),
        click.Option(["--method"], default=None, help="A method, whose dense layers are shown too."),
        click.Option(["--length", "lengths"], multiple=True, type=click.IntRange(1), help=tokens),
    ]


def _help(callback: Any) -> str:
    return re.sub(r"\s*\n\s*", " ", str(callback.__doc__))


def _evaluate(
    model: str,
    tasks: Sequence[str],
    methods: Sequence[str],
    budgets: Sequence[str],
    lengths: Sequence[int],
    samples: int,
    seed: int,
    jobs: int,
    out: str,
) -> None:
    """Run methods at budgets on samples of tasks, and print the mean scores of all rows in the results file.

    Each finished cell is saved at once: the same command resumes an interrupted evaluation.
    """
    with _one_line(f"Stopped. The finished cells are saved; run the same command again to go on, into {out}."):
        from ..methods import names
        from . import evaluate

        labels = dict.fromkeys(name for method in methods for name in (names() if method == "all" else [method]))
        chosen_tasks = [task(text) for text in tasks]
        chosen_budgets = [budget(text) for text in budgets]
        table = evaluate(model, chosen_tasks, list(labels), chosen_budgets, lengths, samples, seed, out, jobs)
        print(means(table))


def _tasks() -> None:
    """List the tasks as a Markdown table."""
    with _one_line():
        from ..tasks import table

        print(table())


def _methods() -> None:
    """List the methods as a Markdown table."""
    with _one_line():
        from ..methods import table

        print(table())


def _report(results: str) -> None:
    """Print a report of a results file in Markdown: what was run, scores with intervals, differences, refusals."""
    with _one_line():
        from .report import report

        print(report(results), end="")


def _doctor(model: str, method: str | None, lengths: Sequence[int]) -> None:
    """Print what kvviz does with a model: which layers methods serve, which stay exact and why, memory, refusals.

    MODEL is an alias, a directory, a .gguf file or a hub id. Only its config is read.
    """
    with _one_line():
        import click

        from ..generation.inspecting import inspect

        inspection = inspect(model, method, lengths or None)
        click.echo(inspection)
        if not inspection.works:
            raise click.exceptions.Exit(UNSUPPORTED)


@contextlib.contextmanager
def _one_line(interrupted: str = "Stopped.") -> Iterator[None]:
    """Turn kvviz errors and Ctrl-C into one line on stderr and an exit code."""
    import click

    try:
        yield
    except KVVizError as error:
        lines = [str(error), *getattr(error, "__notes__", [])]  # notes name the sample, the method and the budget
        message, code = " ".join(" ".join(lines).split()), REFUSED
    except KeyboardInterrupt:
        message, code = interrupted, INTERRUPTED
    else:
        return
    click.echo(f"Error: {message}" if code == REFUSED else message, err=True)
    raise click.exceptions.Exit(code)
