"""evaluate(): a grid of tasks, lengths, methods and budgets, in one process or many."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ..errors import InvalidInputError
from ..methods.base import Method
from ..models import LanguageModel, load
from ..provenance import commit, hardware, installed, model_hash
from ..tasks import Task
from .grid import Cell, Unit, cells, units
from .results import Journal, Results, load_results
from .unit import run_unit

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = ("torch", "transformers", "numpy")


def evaluate(
    lm: LanguageModel | str,
    tasks: Sequence[str | Task],
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    budgets: Sequence[int | float],
    lengths: Sequence[int],
    samples: int = 10,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    jobs: int = 1,
) -> pd.DataFrame:
    """Scores of every method and budget on every sample of every task and length, as `load_results` gives them.

    `tasks` are names of `kvviz.tasks.names()` or instances; `methods` names, names with a preset ("pqcache:official"),
    instances, or a mapping from label to these; `budgets` tokens, or shares of the prompt. `lengths` are tokens of the
    prompt with its question. A sample is prefilled once for all methods and budgets.

    `out`, a Parquet file, appears once all is done. Until then every finished cell is on disk in a folder beside it
    before the next one starts: the same call goes on where a crash or a kill stopped it, and a call with more of
    anything adds what is missing. `jobs` processes share the samples through joblib, each with a model of its own; for
    them `lm` has to be a name that `kvviz.load` takes, or a model that came from it. Inside
    `joblib.parallel_config(backend="dask")`, or "ray", they are the cluster's, which has to see the folder of `out`.
    On a CPU every process computes with one thread, so that the rows are the same for any number of jobs.

    A cell whose budget the method refuses has a row without a score; its column `refused` says why.

    Raises InvalidInputError for lengths above the model's positions and whatever `kvviz.evaluation.grid` refuses,
    UnknownNameError for unknown tasks, methods or presets, IncompatibleFileError for an `out` of another model or
    version, and MissingDependencyError without pyarrow.
    """
    wanted_units, wanted_cells = units(tasks, lengths, samples, seed), cells(methods, budgets)
    model = load(lm) if isinstance(lm, str) else lm
    _check_lengths(model, lengths)
    source = _source(lm, jobs)
    provenance = _provenance(model, seed)
    header = {"model": model.name, "model_hash": provenance["model_hash"]}
    with tempfile.TemporaryDirectory() as folder:
        results = Results(Path(folder) / "results.parquet" if out is None else out, header)
        with results.opened() as finished:
            left = [
                (unit, missing)
                for unit in wanted_units
                if (missing := [cell for cell in wanted_cells if unit.key(cell) not in finished])
            ]
            _run(model if jobs == 1 else source, left, provenance, results.journal, jobs)
            results.finish()
        return load_results(results.path)


def _run(
    lm: LanguageModel | tuple[Any, ...],
    left: list[tuple[Unit, list[Cell]]],
    provenance: Mapping[str, Any],
    journal: Journal,
    jobs: int,
) -> None:
    with tqdm(total=sum(len(missing) for _, missing in left), desc="evaluate", unit="cell", disable=None) as progress:
        if jobs == 1:
            for unit, missing in left:
                _work(lm, unit, missing, provenance, journal, progress)
            return
        import joblib

        calls = (joblib.delayed(_work)(lm, unit, missing, provenance, journal) for unit, missing in left)
        for count in joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(calls):
            progress.update(count)


def _work(
    lm: LanguageModel | tuple[Any, ...],
    unit: Unit,
    missing: list[Cell],
    provenance: Mapping[str, Any],
    journal: Journal,
    progress: Any = None,
) -> int:
    """Run a sample's cells, leaving out those that are on disk by now: a cluster runs a dead worker's sample again."""
    model = lm if isinstance(lm, LanguageModel) else _loaded(*lm)
    before = journal.read(unit.name)
    missing = [cell for cell in missing if unit.key(cell) not in before]
    write = journal.writer(unit.name)

    def done(key: str, rows: list[dict[str, Any]]) -> None:
        write(key, rows)
        if progress is not None:
            progress.update()

    with _one_thread(model):
        run_unit(model, unit, missing, {**provenance, "hardware": hardware(model.device.type)}, done)
    return len(missing)


@lru_cache(1)
def _loaded(name: str, device: str, dtype: Any) -> LanguageModel:
    return load(name, device, dtype)


@contextmanager
def _one_thread(lm: LanguageModel) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if lm.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _source(lm: LanguageModel | str, jobs: int) -> tuple[Any, ...]:
    """What a process loads the model from."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs == 0:
        raise InvalidInputError("evaluate: jobs", repr(jobs), "an int >= 1, or -1 for every processor")
    if isinstance(lm, str):
        return (lm, None, None)
    if lm.source is None and jobs != 1:
        got = f"jobs={jobs} with a model that kvviz.load did not load"
        raise InvalidInputError("evaluate", got, "jobs=1, or a name, directory or file for kvviz.load")
    return () if lm.source is None else (lm.source, str(lm.device), lm.model.dtype)


def _check_lengths(lm: LanguageModel, lengths: Sequence[int]) -> None:
    most = lm.geometry.max_positions
    if max(lengths) > most:
        raise InvalidInputError("evaluate: lengths", max(lengths), f"at most the model's {most} positions")


def _provenance(lm: LanguageModel, seed: int) -> dict[str, Any]:
    import kvviz

    versions = {name: installed(name) for name in PACKAGES}
    return {
        "model": lm.name, "model_hash": model_hash(lm), "dtype": str(lm.model.dtype).removeprefix("torch."),
        "kvviz": kvviz.__version__, "commit": commit(), **versions,
    }  # fmt: skip
