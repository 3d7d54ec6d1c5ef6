"""evaluate(): run a grid of tasks, lengths, methods and budgets, in one process or several."""

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
from ..generation.method_cells import Cell, method_styles
from ..methods.base import Method
from ..models import LanguageModel, load
from ..models.loading import SHARED
from ..models.provenance import commit, hardware, installed, model_hash
from ..models.wrapping import language_model
from ..tasks import Task
from ..trace.edits import Edit
from .example_cells import run_example
from .grid import Example, cells, examples
from .results import Journal, Results, load_results, packages

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

PACKAGES = ("torch", "transformers", "numpy")
Source = tuple[str, str, Any, str]  # name, device, dtype and hash of a model
_loading = threading.Lock()


def evaluate(
    lm: LanguageModel | PreTrainedModel | str,
    tasks: Sequence[str | Task],
    methods: Sequence[str | Method] | Mapping[str, str | Method],
    budgets: Sequence[int | float],
    lengths: Sequence[int],
    samples: int = 10,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    edits: Mapping[str, Edit] | None = None,
    logprobs: bool = False,
) -> pd.DataFrame:
    """Scores of every method and budget on every sample of every task and length: a table as from `load_results`.

    `tasks`: names from `kvviz.tasks.names()`, or instances. `methods`: names, names with a preset ("pqcache:official"),
    instances, or a mapping from labels to these. `budgets`: tokens, or shares of the prompt. `lengths`: tokens of the
    prompt, the question included. Each sample is prefilled once for all methods and budgets. `edits`, by name: every
    method and budget runs once more with each of them (`kvviz.exact` and others), labelled "method, name"; tokens that
    an edit gives as text must occur in every sample. `logprobs`: the column `logprob` has the log-probability of the
    first turn's first answer, as from `kvviz.score`, which moves before the text does; this takes as long again.
    Otherwise, in other turns, and in cells finished before, it is NaN.

    `out`: a Parquet file, written at the end. Until then each finished cell is saved in a folder next to it: after a
    crash or a kill, the same call goes on from there, and a call with more tasks, methods, budgets, lengths or samples
    adds the missing cells. `jobs` processes share the samples through joblib, each with its own model; `lm` must then
    be a name that `kvviz.load` accepts, or a model from `kvviz.load`. If a model does not fit on one GPU, pass
    `kvviz.load(name, device="auto")`, which distributes its layers. Inside `joblib.parallel_config(backend="dask")`, or
    "ray" after `ray.util.joblib.register_ray()`, the processes are those of the cluster; it needs access to the folder
    of `out`, and any `jobs` other than 1 means all of them. If a process dies, dask runs its sample elsewhere; other
    backends stop with an error, and the same call goes on. On a CPU each process uses one thread, so that the number of
    jobs does not change the results.

    If a method refuses a budget, the cell has a row without a score, and its column `refused` gives the reason.

    Raises InvalidInputError for lengths above the model's positions and the errors of `kvviz.evaluation.grid`,
    UnknownNameError for unknown tasks, methods or presets, IncompatibleFileError for an `out` of another model or
    version, and MissingDependencyError without pyarrow.
    """
    packages()  # report missing packages before anything is loaded
    lm = lm if isinstance(lm, str) else language_model("evaluate", lm)
    all_examples, all_cells = examples(tasks, lengths, samples, seed), cells(methods, budgets, edits, logprobs)
    _check_jobs(lm, jobs)
    model = load(lm) if isinstance(lm, str) else lm
    _check_lengths(model, lengths)
    provenance = _provenance(model)
    header = {"model": model.name, "model_hash": provenance["model_hash"]}
    with tempfile.TemporaryDirectory() as folder:
        styles = method_styles(cell.method for cell in all_cells if cell.method)
        results = Results(Path(folder) / "results.parquet" if out is None else out, header, styles)
        with results.opened() as finished:
            left = [
                (example, missing)
                for example in all_examples
                if (missing := [cell for cell in all_cells if example.key(cell) not in finished])
            ]
            with _one_thread(model):
                _run(model, left, provenance, results.journal, jobs)
            results.finish()
        return load_results(results.path)


def _run(
    lm: LanguageModel,
    left: list[tuple[Example, list[Cell]]],
    provenance: Mapping[str, Any],
    journal: Journal,
    jobs: int,
) -> None:
    with tqdm(total=sum(len(missing) for _, missing in left), desc="evaluate", unit="cell", disable=None) as progress:
        if jobs == 1:
            for example, missing in left:
                _work(lm, example, missing, provenance, journal, progress)
            return
        import joblib

        source = _source(lm, provenance["model_hash"])
        caller = os.getpid()
        calls = (
            joblib.delayed(_work)(source, example, missing, provenance, journal, caller=caller)
            for example, missing in left
        )
        for count in _parallel(jobs)(calls):
            progress.update(count)


def _parallel(jobs: int) -> Any:
    """joblib's Parallel, which yields results as they arrive, except with "multiprocessing" and Ray, which cannot."""
    import joblib

    try:
        return joblib.Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
    except ValueError:
        return joblib.Parallel(n_jobs=jobs, batch_size=1)


def _work(
    lm: LanguageModel | Source,
    example: Example,
    missing: list[Cell],
    provenance: Mapping[str, Any],
    journal: Journal,
    progress: Any = None,
    caller: int | None = None,
) -> int:
    """Run a sample's cells, except those already on disk (a cluster runs the sample of a dead worker again).

    Returns the number of `missing` cells. A process that `caller` started ends when `caller` does.
    """
    if caller is not None:
        _end_with(caller)
    model = lm if isinstance(lm, LanguageModel) else _loaded(lm)
    finished = journal.keys(example.name)
    write = journal.writer(example.name)

    def save(key: str, rows: list[dict[str, Any]]) -> None:
        write(key, rows)
        if progress is not None:
            progress.update()

    try:
        with _one_thread(model):
            still_missing = [cell for cell in missing if example.key(cell) not in finished]
            run_example(model, example, still_missing, {**provenance, "hardware": hardware(model.device.type)}, save)
    except Exception as error:
        error.add_note(
            f"In sample {example.index} of {example.task.name} at {example.length} tokens, seed {example.seed}."
        )
        raise
    return len(missing)


@cache
def _end_with(caller: int) -> None:
    """End this process, if loky started it for `caller`, as soon as `caller` ends.

    Otherwise it would finish all samples it was given, and then wait for more.
    """
    from joblib.externals.loky.backend.process import LokyProcess

    parent = parent_process()
    if isinstance(current_process(), LokyProcess) and parent is not None and parent.pid == caller:
        threading.Thread(target=_watch, args=(caller,), daemon=True).start()


def _watch(caller: int) -> None:
    while os.getppid() == caller:
        time.sleep(0.1)
    os._exit(1)  # nobody waits for results or an error, and the journal ignores an incomplete line


def _loaded(source: Source) -> LanguageModel:
    with _loading:  # transformers loads in one thread at a time
        return _load(*source)


@lru_cache(1)
def _load(name: str, device: str, dtype: Any, expected_hash: str) -> LanguageModel:
    lm = load(name, device, dtype)
    weights = model_hash(lm.model)
    if weights != expected_hash:
        wanted = f"{expected_hash}, those of the given model"
        raise IncompatibleFileError(f"evaluate: load {name} again", f"weights {weights}", wanted)
    return lm


@contextmanager
def _one_thread(lm: LanguageModel) -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    if lm.device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _check_jobs(lm: LanguageModel | str, jobs: int) -> None:
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs == 0:
        raise InvalidInputError("evaluate: jobs", repr(jobs), "an int >= 1, or -1 for all processors")
    if jobs != 1 and isinstance(lm, LanguageModel) and lm.source is None:
        got = f"jobs={jobs} with a model that kvviz.load did not load"
        raise InvalidInputError("evaluate", got, "jobs=1, or a name, directory or file for kvviz.load")


def _source(lm: LanguageModel, weights: str) -> Source:
    """What another process needs to load the same model, whatever its working directory and devices."""
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
