"""evaluate(): a grid of tasks, lengths, methods and budgets, in one process or many."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from multiprocessing import current_process, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ..errors import IncompatibleFileError, InvalidInputError
from ..generation.method_cells import Cell
from ..methods.base import Method
from ..models import LanguageModel, load
from ..models.loading import SHARED
from ..models.provenance import commit, hardware, installed, model_hash
from ..tasks import Task
from .grid import Unit, cells, units
from .results import Journal, Results, load_results, packages
from .unit import run_unit

if TYPE_CHECKING:
    import pandas as pd

PACKAGES = ("torch", "transformers", "numpy")
Source = tuple[str, str, Any, str]  # name, device, dtype and hash of a model
_loading = threading.Lock()


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
    them `lm` has to be a name that `kvviz.load` takes, or a model that came from it. Give a model that one GPU does not
    hold as `kvviz.load(name, device="auto")`, which shares its layers out. Inside
    `joblib.parallel_config(backend="dask")`, or "ray" behind `ray.util.joblib.register_ray()`, they are the cluster's,
    which has to see the folder of `out`, and `jobs` says no more than that there are several. Where one of them dies,
    dask runs its sample elsewhere; any other backend gives up with its own error, and the same call goes on.
    On a CPU every process computes with one thread, so that the rows are the same for any number of jobs.

    A cell whose budget the method refuses has a row without a score; its column `refused` says why.

    Raises InvalidInputError for lengths above the model's positions and whatever `kvviz.evaluation.grid` refuses,
    UnknownNameError for unknown tasks, methods or presets, IncompatibleFileError for an `out` of another model or
    version, and MissingDependencyError without pyarrow.
    """
    packages()  # what is missing is said before anything is loaded
    wanted_units, wanted_cells = units(tasks, lengths, samples, seed), cells(methods, budgets)
    _check_jobs(lm, jobs)
    model = load(lm) if isinstance(lm, str) else lm
    _check_lengths(model, lengths)
    provenance = _provenance(model)
    header = {"model": model.name, "model_hash": provenance["model_hash"]}
    with tempfile.TemporaryDirectory() as folder:
        results = Results(Path(folder) / "results.parquet" if out is None else out, header)
        with results.opened() as finished:
            left = [
                (unit, missing)
                for unit in wanted_units
                if (missing := [cell for cell in wanted_cells if unit.key(cell) not in finished])
            ]
            with _one_thread(model):
                _run(model, left, provenance, results.journal, jobs)
            results.finish()
        return load_results(results.path)


def _run(
    lm: LanguageModel,
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

        source = _source(lm, provenance["model_hash"])
        caller = os.getpid()
        calls = (
            joblib.delayed(_work)(source, unit, missing, provenance, journal, caller=caller) for unit, missing in left
        )
        for count in _parallel(jobs)(calls):
            progress.update(count)


def _parallel(jobs: int) -> Any:
    """joblib's Parallel, which gives results as they come where its backend can: "multiprocessing" and Ray cannot."""
    import joblib

    try:
        return joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
    except ValueError:
        return joblib.Parallel(n_jobs=jobs, batch_size=1)


def _work(
    lm: LanguageModel | Source,
    unit: Unit,
    missing: list[Cell],
    provenance: Mapping[str, Any],
    journal: Journal,
    progress: Any = None,
    caller: int | None = None,
) -> int:
    """Run a sample's cells, leaving out those that are on disk by now: a cluster runs a dead worker's sample again.

    Returns how many cells it was given. A process that `caller` started for it ends with that one.
    """
    if caller is not None:
        _end_with(caller)
    model = lm if isinstance(lm, LanguageModel) else _loaded(lm)
    before = journal.keys(unit.name)
    write = journal.writer(unit.name)

    def done(key: str, rows: list[dict[str, Any]]) -> None:
        write(key, rows)
        if progress is not None:
            progress.update()

    try:
        with _one_thread(model):
            still = [cell for cell in missing if unit.key(cell) not in before]
            run_unit(model, unit, still, {**provenance, "hardware": hardware(model.device.type)}, done)
    except Exception as error:
        error.add_note(f"In sample {unit.index} of {unit.task.name} at {unit.length} tokens, seed {unit.seed}.")
        raise
    return len(missing)


@cache
def _end_with(caller: int) -> None:
    """Let a process that loky started for `caller` end with it, at once if it is gone already.

    It would go on with all samples handed to it, and then wait for more.
    """
    from joblib.externals.loky.backend.process import LokyProcess

    parent = parent_process()
    if isinstance(current_process(), LokyProcess) and parent is not None and parent.pid == caller:
        threading.Thread(target=_watch, args=(caller,), daemon=True).start()


def _watch(caller: int) -> None:
    while os.getppid() == caller:
        time.sleep(0.1)
    os._exit(1)  # nobody waits for results or an error; of a line half written the journal takes no notice


def _loaded(source: Source) -> LanguageModel:
    with _loading:  # transformers loads in one thread at a time
        return _load(*source)


@lru_cache(1)
def _load(name: str, device: str, dtype: Any, wanted: str) -> LanguageModel:
    lm = load(name, device, dtype)
    found = model_hash(lm.model)
    if found != wanted:
        raise IncompatibleFileError(f"evaluate: load {name} again", f"weights {found}", f"{wanted}, the given model's")
    return lm


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


def _check_jobs(lm: LanguageModel | str, jobs: int) -> None:
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs == 0:
        raise InvalidInputError("evaluate: jobs", repr(jobs), "an int >= 1, or -1 for every processor")
    if jobs != 1 and isinstance(lm, LanguageModel) and lm.source is None:
        got = f"jobs={jobs} with a model that kvviz.load did not load"
        raise InvalidInputError("evaluate", got, "jobs=1, or a name, directory or file for kvviz.load")


def _source(lm: LanguageModel, weights: str) -> Source:
    """What a process loads the same model from, whatever its working directory and devices."""
    assert lm.source is not None
    path = Path(lm.source)
    places = set((getattr(lm.model, "hf_device_map", None) or {}).values())  # accelerate's
    device = SHARED if len(places) > 1 else str(lm.device)
    return str(path.absolute() if path.exists() else path), device, lm.model.dtype, weights


def _check_lengths(lm: LanguageModel, lengths: Sequence[int]) -> None:
    most = lm.geometry.max_positions
    if max(lengths) > most:
        raise InvalidInputError("evaluate: lengths", max(lengths), f"at most the model's {most} positions")


def _provenance(lm: LanguageModel) -> dict[str, Any]:
    import kvviz

    versions = {name: installed(name) for name in PACKAGES}
    return {
        "model": lm.name, "model_hash": model_hash(lm.model), "dtype": str(lm.model.dtype).removeprefix("torch."),
        "kvviz": kvviz.__version__, "commit": commit(), **versions,
    }  # fmt: skip
