"""open_runs(): what the notebooks of kvviz's repository draw, for whoever has the repository."""

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
    """The runs that the repository's notebooks draw, after a printed line that says whether they are live or recorded.

    `live`: True computes with the model, False reads the files; left out, the environment variable KVVIZ_OFFLINE says
    so (1: recorded, 0: live). Where that is not set either, they are recorded on Binder, which sets
    BINDER_SERVICE_HOST, and where the model is not installed, and live anywhere else. `data` is the folder of the
    recorded files; left out, it is the one that KVVIZ_DATA names, the repository's data/, ./data or ../data. Live
    results are kept in memory until the process ends; they take seconds to minutes.

    How each run is made is no part of an installed wheel: it stands in the repository, in notebooks/runs, which is
    looked for beside the package, in the working directory and above it.

    Raises KVVizError where there is no repository, InvalidInputError where recorded data is wanted and no folder holds
    it, or for another KVVIZ_OFFLINE, and whatever `kvviz.load` raises where the live model is wanted.
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
    where = ", ".join(dict.fromkeys(map(str, roots)))
    wanted = (
        "a checkout of kvviz's repository, whose notebooks/runs says how each run is made: work in one, or install "
        "it with `pip install -e .`; for a prompt of your own, kvviz.capture and kvviz.generate need no repository"
    )
    raise KVVizError("open_runs", f"kvviz without its repository (looked in {where})", wanted)
