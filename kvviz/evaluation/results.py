"""Results on disk: finished cells in a journal, one whole Parquet file at the end."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IncompatibleFileError, InvalidInputError, MissingDependencyError
from ..storage import replacing

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
KEY = "key"
# What rows are sorted by: the same order whoever finished first.
ORDER = ["task", "placement", "length", "sample", "seed", "method", "budget", "turn", KEY]
Row = dict[str, Any]
Writer = Callable[[str, list[Row]], None]


class Journal:
    """The folder beside a results file that holds the cells finished so far, while a grid runs.

    Every process that runs cells appends to a file of its own, one line a cell, which is on the disk before the next
    cell starts. What a crash cuts off is one line without an end, which is not read.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.folder = Path(f"{os.fspath(out)}.cells")

    def writer(self, sample: str) -> Writer:
        """A function that puts a finished cell's rows on the disk; nothing of them is there where that fails.

        `sample` names the sample that the cells are of.
        """
        path = self.folder / f"{sample}-{uuid.uuid4().hex}.jsonl"

        def write(key: str, rows: list[Row]) -> None:
            line = json.dumps({KEY: key, "rows": rows}, ensure_ascii=False) + "\n"
            with path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    _write_all(file.fileno(), line.encode())
                    os.fsync(file.fileno())
                except OSError as error:
                    os.ftruncate(file.fileno(), before)
                    error.add_note(f"The cells finished before are in {self.folder}; the same call goes on from there.")
                    raise

        return write

    def read(self, sample: str = "*") -> dict[str, list[Row]]:
        """The rows of every finished cell, or of a sample's, by key; one that two processes finished counts once."""
        found: dict[str, list[Row]] = {}
        for path in sorted(self.folder.glob(f"{sample}-*.jsonl")):
            *lines, _unfinished = path.read_bytes().split(b"\n")
            for number, line in enumerate(lines):
                try:
                    cell = json.loads(line)
                    found.setdefault(cell[KEY], cell["rows"])
                except (ValueError, KeyError, TypeError) as error:
                    got = f"line {number + 1}, which is no finished cell ({error})"
                    raise IncompatibleFileError(f"read {path}", got, "lines that kvviz.evaluate wrote") from error
        return found


class Results:
    """A results file and its journal. `header` says what all rows share: they are of one model and one version."""

    def __init__(self, out: str | os.PathLike[str], header: Mapping[str, Any]) -> None:
        self.path = Path(out)
        self.header = {"version": VERSION, **header}
        self.journal = Journal(out)

    @contextmanager
    def opened(self) -> Iterator[set[str]]:
        """The keys of all finished cells, while no other process writes here.

        Raises IncompatibleFileError for a file of another version or model, or of something else, which is left as it
        is, and InvalidInputError where another process is at work on it or there is no such folder.
        """
        from filelock import FileLock, Timeout

        _parquet()  # before anything runs
        if not self.path.parent.is_dir():
            raise InvalidInputError("evaluate: out", f"no folder {self.path.parent}", "an existing folder")
        finished = self._finished()
        self.journal.folder.mkdir(exist_ok=True)
        try:
            with FileLock(self.journal.folder / "lock", timeout=0):
                self._check_header(self.journal.folder / "header.json")
                yield finished | set(self.journal.read())
        except Timeout as error:
            raise InvalidInputError(
                "evaluate: out", f"{self.path}, which another process writes", "another file"
            ) from error

    def finish(self) -> None:
        """Write all rows, sorted, to the Parquet file, whole or not at all, and remove the journal."""
        pandas, arrow, parquet = _parquet()
        rows = [] if not self.path.exists() else parquet.read_table(self.path).to_pylist()
        known = {row[KEY] for row in rows}
        for key, cell in self.journal.read().items():
            rows += [{KEY: key, **row} for row in cell if key not in known]
        table = pandas.DataFrame(rows).sort_values(ORDER, kind="stable", ignore_index=True)
        stored = arrow.Table.from_pandas(table, preserve_index=False)
        stored = stored.replace_schema_metadata({"kvviz": json.dumps(self.header, sort_keys=True)})
        with replacing(self.path) as partial:
            parquet.write_table(stored, partial, compression="zstd")
        shutil.rmtree(self.journal.folder)

    def _finished(self) -> set[str]:
        if not self.path.exists():
            return set()
        _, _, parquet = _parquet()
        self._check_same(_read_header(self.path))
        return set(parquet.read_table(self.path, columns=[KEY])[KEY].to_pylist())

    def _check_header(self, path: Path) -> None:
        if path.exists():
            self._check_same(_json_header(path))
            return
        with replacing(path) as partial:
            partial.write_text(json.dumps(self.header, sort_keys=True))

    def _check_same(self, header: Mapping[str, Any]) -> None:
        for name, value in self.header.items():
            if header.get(name) != value:
                raise IncompatibleFileError(
                    f"evaluate: out {self.path}", f"{name} {header.get(name)!r}", f"{value!r}, or another file"
                )


def load_results(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The rows of a results file as a table, those of a grid that is still running, or was stopped, included.

    One row a turn: the columns of the file, and one for each of the samples' `details` ("depth"). `attrs` has the
    file's header: model, model_hash, version. Raises IncompatibleFileError for a file that `kvviz.evaluate` did not
    write, and InvalidInputError where there is none.
    """
    pandas, _, parquet = _parquet()
    path, journal = Path(path), Journal(path)
    if not path.exists() and not journal.folder.exists():
        raise InvalidInputError("load results", f"no file {path}", "one that kvviz.evaluate wrote")
    header = _read_header(path) if path.exists() else _json_header(journal.folder / "header.json")
    rows = parquet.read_table(path).to_pylist() if path.exists() else []
    known = {row[KEY] for row in rows}
    for key, cell in journal.read().items():
        rows += [{KEY: key, **row} for row in cell if key not in known]
    if not rows:
        raise InvalidInputError("load results", f"{path} without a finished cell", "at least one")
    table = pandas.DataFrame([{**json.loads(row["details"]), **row} for row in rows])
    ordered: pd.DataFrame = table.sort_values(ORDER, kind="stable", ignore_index=True)
    ordered.attrs.update(header)
    return ordered


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _read_header(path: Path) -> dict[str, Any]:
    _, arrow, parquet = _parquet()
    try:
        metadata = parquet.read_schema(path).metadata or {}
        return dict(json.loads(metadata[b"kvviz"]))
    except (arrow.ArrowInvalid, KeyError, ValueError) as error:
        raise IncompatibleFileError(f"read {path}", "another kind of file", "one that kvviz.evaluate wrote") from error


def _json_header(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise IncompatibleFileError(f"read {path}", error, "the header that kvviz.evaluate wrote") from error


def _parquet() -> tuple[Any, Any, Any]:
    import pandas

    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("evaluate", "pyarrow", "evaluate") from error
    return pandas, pyarrow, pyarrow.parquet
