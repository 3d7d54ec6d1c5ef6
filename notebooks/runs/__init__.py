"""The runs that the notebooks draw: live if the model is installed, otherwise recorded by `make data`.

Both come from the same recipes: `make data` writes the results of a live notebook to files.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kvviz.errors import IncompatibleFileError, InvalidInputError, KVVizError, MissingDependencyError, UnknownNameError
from kvviz.trace import Recording, Trace
from kvviz.trace.diagnosis import Diagnosis
from kvviz.trace.timeline import Timeline

from . import files
from . import misses as _misses  # noqa: F401 (its recipes are registered by the import)
from . import tables as _tables  # noqa: F401 (likewise)
from .recipes import MODEL, RECIPES, SEVERAL, Kind

if TYPE_CHECKING:
    import pandas as pd

    from kvviz.models import LanguageModel

__all__ = ["Runs", "names", "open_runs"]


class Runs:
    """Traces, recordings, diagnoses, timelines and tables by name, live or recorded; made by `open_runs`.

    `live` says which; `origin` says it in a sentence. Every method raises UnknownNameError for an unknown name and, for
    recorded data, IncompatibleFileError if a file is missing or damaged.
    """

    def __init__(self, folder: Path | None, origin: str) -> None:
        self._folder = folder
        self._entries = [] if folder is None else files.read_card(folder)
        self._read: dict[str, dict[str, Any]] = {}
        self.origin = origin

    def __repr__(self) -> str:
        return self.origin

    @property
    def live(self) -> bool:
        """Whether the model computes the results now."""
        return self._folder is None

    @property
    def lm(self) -> LanguageModel:
        """The LanguageModel. Raises KVVizError if the data is recorded."""
        if not self.live:
            wanted = "the live model: set KVVIZ_OFFLINE=0, or open_runs(live=True)"
            raise KVVizError("runs.lm", self.origin.rstrip("."), wanted)
        return _model()

    def trace(self, name: str) -> Trace:
        """The trace of that name."""
        return cast(Trace, self._result("trace", name)[""])

    def recordings(self, name: str) -> dict[str, Recording]:
        """The recordings of that name by label, in the order in which they were made."""
        return dict(self._result("recordings", name))

    def diagnoses(self, name: str) -> dict[str, Diagnosis]:
        """The diagnoses of that name by label, in the order in which they were made."""
        return dict(self._result("diagnoses", name))

    def timelines(self, name: str) -> dict[str, Timeline]:
        """The timelines of that name by label, in the order in which they were made."""
        return dict(self._result("timelines", name))

    def table(self, name: str) -> pd.DataFrame:
        """A copy of the table of that name, with its attrs."""
        table: pd.DataFrame = self._result("table", name)[""]
        return table.copy()

    def _result(self, kind: Kind, name: str) -> dict[str, Any]:
        """The recordings, diagnoses or timelines by label; a trace or table under the empty label."""
        known = [key for key, recipe in RECIPES.items() if recipe.kind == kind]
        if name not in known:
            raise UnknownNameError(f"runs.{kind}", str(name), known)
        if self._folder is None:
            return _live_result(name)
        if name not in self._read:
            entries = [entry for entry in self._entries if entry["recipe"] == name and entry["kind"] == kind]
            if not entries:
                raise IncompatibleFileError(f"read {self._folder / files.CARD}", f"no {name!r}", files.REMAKE)
            self._read[name] = {entry["label"]: files.load(self._folder, entry) for entry in entries}
        return self._read[name]


def open_runs(data: str | os.PathLike[str] | None = None, live: bool | None = None) -> Runs:
    """The runs to draw. Prints a line that says whether they are live or recorded.

    `live`: True computes with the model, False reads the files. By default the environment variable KVVIZ_OFFLINE
    decides (1: recorded, 0: live). If it is not set, runs are recorded on Binder, which sets BINDER_SERVICE_HOST, and
    if the model is not installed; otherwise they are live. `data` is the folder of the recorded files; by default
    the one in KVVIZ_DATA, the repository's data/, ./data or ../data. Live results take seconds to minutes (see
    `names`) and stay in memory until the process ends.

    Raises InvalidInputError if no folder holds the recorded data, or for other values of KVVIZ_OFFLINE. For live runs
    it raises the errors of `kvviz.load`.
    """
    live, why = _choice(live)
    if live:
        lm = _model()
        dtype = str(lm.model.dtype).removeprefix("torch.")
        runs = Runs(None, f"Live: {lm.name}, {dtype} on the {lm.device.type.upper()}.")
    else:
        folder = files.find_folder(data)
        entries = files.read_card(folder)
        made, models = max(entry["made"] for entry in entries), sorted({entry["model"] for entry in entries})
        name = f"{folder.resolve().name}/"
        runs = Runs(folder, f"Recorded: {name} of {made}, made with {', '.join(models)} by `make data` ({why}).")
    print(runs.origin)
    return runs


def names() -> dict[str, str]:
    """All names, with their kind and a description, such as {"prose": "trace: 2,048 tokens of ..."}."""
    return {name: f"{recipe.kind}: {recipe.description}" for name, recipe in RECIPES.items()}


def _choice(live: bool | None) -> tuple[bool, str]:
    """Whether to run the model and, if not, why."""
    if live is not None:
        return live, "live=False"
    offline = os.environ.get("KVVIZ_OFFLINE", "")
    if offline not in ("", "0", "1"):
        raise InvalidInputError("open_runs: KVVIZ_OFFLINE", repr(offline), "1 (recorded) or 0 (live)")
    if offline:
        return offline == "0", "KVVIZ_OFFLINE=1"
    if os.environ.get("BINDER_SERVICE_HOST"):
        return False, "Binder; KVVIZ_OFFLINE=0 runs the model"
    from kvviz.models.loading import BUNDLED

    try:
        BUNDLED[MODEL].path()
    except MissingDependencyError:
        return False, f"the model is not installed: {BUNDLED[MODEL].install}"
    return True, ""


@cache
def _model() -> LanguageModel:
    from kvviz.models import load

    return load(MODEL)


@cache
def _live_result(name: str) -> dict[str, Any]:
    recipe = RECIPES[name]
    result = recipe.make(_model())
    return result if recipe.kind in SEVERAL else {"": result}
