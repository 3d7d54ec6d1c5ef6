"""open_runs(): the runs that the notebooks of kvviz's repository plot; it needs a checkout of the repository."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import KVVizError

if TYPE_CHECKING:
    from notebooks.runs import Runs

NAME = "notebooks.runs"


def open_runs(data: str | os.PathLike[str] | None = None, live: bool | None = None) -> Runs:
    """The runs that the repository's notebooks plot. Prints one line that says whether they are live or recorded.

    `live`: True computes with the model, False reads the recorded files; the default is the environment variable
    KVVIZ_OFFLINE (1: recorded, 0: live). If it is not set, the runs are recorded on Binder, which sets
    BINDER_SERVICE_HOST, or if the model is not installed, and live otherwise. `data` is the folder of the recorded
    files; the default is KVVIZ_DATA, the repository's data/, ./data or ../data. Live results take seconds to minutes
    and are kept in memory until the process ends.

    The recipes of the runs are not in the wheel but in the repository, in notebooks/runs. The function looks for them
    next to the package, in the working directory and in its parent.

    Raises KVVizError without the repository, InvalidInputError if there is no folder of recorded data or for another
    value of KVVIZ_OFFLINE, and the errors of `kvviz.load` for live runs.
    """
    runs: Runs = _recipes().open_runs(data, live)
    return runs


def _recipes() -> ModuleType:
    """The repository's package notebooks/runs."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    roots = (Path(__file__).resolve().parents[2], Path.cwd(), Path.cwd().parent)
    for root in roots:
        path = root / "notebooks" / "runs" / "__init__.py"
        spec = importlib.util.spec_from_file_location(NAME, path) if path.is_file() else None
        if spec is not None and spec.loader is not None:
            module = sys.modules[NAME] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[NAME]
                raise
            return module
    folders = ", ".join(dict.fromkeys(map(str, roots)))
    wanted = (
        "a checkout of kvviz's repository, whose notebooks/runs has the recipes of the runs: work in one, or install "
        "it with `pip install -e .`; for your own prompt, kvviz.capture and kvviz.generate need no repository"
    )
    raise KVVizError("open_runs", f"kvviz without its repository (looked in {folders})", wanted)
