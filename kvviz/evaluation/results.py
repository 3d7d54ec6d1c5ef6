"""Results on disk: a journal of finished cells while a grid runs, and one Parquet file at the end."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import IncompatibleFileError, InvalidInputError, MissingDependencyError
from ..trace.storage import replacing

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
# Columns that files of earlier releases lack: NaN there.
ADDED = ("attended_tokens", "peak_bytes", "ttft_s", "tt2t_s", "tpot_s", "logprob", "held_bytes", "read_bytes")
KEY = "key"
# Sort order of the rows, so that the order in which processes finish does not matter.
ORDER = ["task", "placement", "length", "sample", "seed", "method", "budget", "turn", KEY]
BATCH = 200  # cells held as Python objects at a time; Arrow needs a fraction of their memory for all rows
Row = dict[str, Any]
Writer = Callable[[str, list[Row]], None]


class Journal:
    """The finished cells of a running grid, in a folder next to the results file.

    Each process that runs a sample appends to a separate file, one line per cell, and flushes it to disk before the
    next cell starts. A crash leaves at most one incomplete line, which is not read.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.folder = Path(f"{os.fspath(out)}.cells").absolute()  # workers may have another working directory
        self.header = self.folder / "header.json"

    def writer(self, sample: str) -> Writer:
        """A function that writes a finished cell's rows to disk, all or none of them.

        `sample` is the name of the cells' sample.
        """
        path = self.folder / f"{sample}-{uuid.uuid4().hex}.jsonl"

        def write(key: str, rows: list[Row]) -> None:
            line = json.dumps({KEY: key, "rows": rows}, ensure_ascii=False) + "\n"
            with self.kept():
                _append(path, line.encode())

        return write

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A context that adds to an OSError, such as a full disk, where the finished cells are."""
        try:
            yield
        except OSError as error:
            error.add_note(f"The finished cells are in {self.folder}; make the same call again to go on from there.")
            raise

    def cells(self, sample: str = "*") -> Iterator[tuple[str, list[Row]]]:
        """Key and rows of every finished cell, of all samples or one; cells that were run twice come once.

        Raises IncompatibleFileError for a complete line that is not a cell.
        """
        seen = set()
        for path in sorted(self.folder.glob(f"{sample}-*.jsonl")):
            for number, line in enumerate(_whole_lines(path)):
                try:
                    cell = json.loads(line)
                    key, rows = cell[KEY], cell["rows"]
                except (ValueError, KeyError, TypeError) as error:
                    got = f"line {number + 1}, which is not a finished cell ({error})"
                    raise IncompatibleFileError(f"read {path}", got, "lines that kvviz.evaluate wrote") from error
                if key not in seen:
                    seen.add(key)
                    yield key, rows

    def keys(self, sample: str = "*") -> set[str]:
        """The keys of the finished cells, of all samples or one."""
        return {key for key, _ in self.cells(sample)}


class Results:
    """A results file and its journal.

    `header` holds what all rows share: the model and the version. `styles` are the looks of this call's methods, which
    the file keeps together with those of earlier calls.
    """

    def __init__(
        self, out: str | os.PathLike[str], header: Mapping[str, Any], styles: Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(out)
        self.header = {"version": VERSION, **header}
        self.styles = dict(styles or {})
        self.journal = Journal(out)

    @contextmanager
    def opened(self) -> Iterator[set[str]]:
        """A context that locks the file against other processes; its value is the keys of all finished cells.

        Raises IncompatibleFileError for a file of another version, model or kind (the file is not changed), and
        InvalidInputError if another process is writing it or the folder does not exist.
        """
        _, _, parquet = packages()
        if not self.path.parent.is_dir():
            raise InvalidInputError("evaluate: out", f"no folder {self.path.parent}", "an existing folder")
        if self.path.is_dir():
            raise InvalidInputError("evaluate: out", f"the folder {self.path}", "a file")
        self._check_file()
        with self._locked():
            self._check_file()  # again: another process may have written it in between
            self._start_journal()
            finished = self.journal.keys()
            if self.path.exists():
                finished.update(parquet.read_table(self.path, columns=[KEY])[KEY].to_pylist())
            yield finished

    def finish(self) -> None:
        """Write all rows, sorted, to the Parquet file, completely or not at all, and remove the journal.

        A file that already has all rows is not changed.
        """
        _, _, parquet = packages()
        if not self.path.exists() or self.journal.keys():
            header = {"kvviz": self.journal.header.read_text()}
            whole = self.journal.folder / "whole.parquet"  # removed with the journal, even if this is interrupted
            with self.journal.kept():
                parquet.write_table(_rows(self.path, self.journal, header), whole, compression="zstd")
                with whole.open("rb+") as file:
                    os.fsync(file.fileno())  # must be on disk before the journal is removed
                os.replace(whole, self.path)
        # Cluster workers of a stopped grid may write for a while; the next call removes what they leave.
        shutil.rmtree(self.journal.folder, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        self.journal.folder.mkdir(exist_ok=True)
        file = self.journal.folder / "lock"
        busy = InvalidInputError("evaluate: out", f"{self.path}, which another process is writing", "another file")
        try:
            lock = FileLock(file, timeout=0).acquire()
        except Timeout as error:
            raise busy from error
        with lock:
            if not file.exists():  # the other process finished in between, and removed it
                raise busy
            yield

    def _start_journal(self) -> None:
        styles = _file_header(self.path).get("styles", {}) if self.path.exists() else {}
        if self.journal.header.exists():
            header = _journal_header(self.journal.header)
            self._check_same(self.journal.folder, header)
            styles |= header.get("styles", {})
        with replacing(self.journal.header) as partial:
            partial.write_text(json.dumps(self.header | {"styles": styles | self.styles}, sort_keys=True))

    def _check_file(self) -> None:
        if self.path.exists():
            self._check_same(self.path, _file_header(self.path))

    def _check_same(self, path: Path, header: Mapping[str, Any]) -> None:
        for name, value in self.header.items():
            if header.get(name) != value:
                raise IncompatibleFileError(
                    f"evaluate: out {path}", f"{name} {header.get(name)!r}", f"{value!r}, or another file"
                )


def load_results(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The rows of a results file as a table; includes the finished cells of a grid that is running or was stopped.

    One row per turn: its score, text, times, attended tokens and bytes. `ttft_s` includes prefill and build in the
    first turn; times are those of one run, with other processes beside it. The columns are those of the file, and one
    for each of the samples' `details` ("depth"). `attrs` has the file's header: model, model_hash, version, and the
    methods' styles, which figures need. Raises IncompatibleFileError for a file that `kvviz.evaluate` did not write, or
    wrote in another version, and InvalidInputError if there is no file or no finished cell.
    """
    pandas, _, _ = packages()
    path, journal = Path(path), Journal(path)
    header = _file_header(path) if path.exists() else {}
    if not header and journal.header.exists():
        header = _journal_header(journal.header)
    if not header and not path.exists():  # checked again: a grid may just have finished
        raise InvalidInputError("load results", f"no file {path}", "one that kvviz.evaluate wrote")
    header = header or _file_header(path)
    if header.get("version") != VERSION:
        raise IncompatibleFileError(f"read {path}", f"version {header.get('version')!r}", f"version {VERSION}")
    table = _rows(path, journal).to_pandas()
    table = table.assign(**{name: math.nan for name in ADDED if name not in table})
    in_tokens = table["budget"].notna().map({True: "tokens", False: ""})  # files of earlier releases have no others
    table["hold"] = table["hold"].fillna(in_tokens) if "hold" in table else in_tokens
    if table.empty:
        raise InvalidInputError("load results", f"{path} without a finished cell", "at least one")
    details = pandas.DataFrame([json.loads(text) for text in table["details"]])
    whole: pd.DataFrame = pandas.concat([table, details[details.columns.difference(table.columns, sort=False)]], axis=1)
    whole.attrs.update(header)
    return whole


def _rows(path: Path, journal: Journal, header: Mapping[str, str] | None = None) -> Any:
    """All rows of the file and its journal, each cell once, sorted: an Arrow table with `header` as metadata."""
    _, arrow, parquet = packages()
    cells = ([{KEY: key, **row} for row in rows] for key, rows in journal.cells())
    tables = []
    while batch := list(itertools.chain.from_iterable(itertools.islice(cells, BATCH))):
        tables.append(arrow.Table.from_pylist(batch))
    if path.exists():  # checked after the journal was read, since the journal is removed once the file exists
        whole = parquet.read_table(path).replace_schema_metadata(None)
        known = whole[KEY].combine_chunks()
        tables = [table.filter(arrow.compute.invert(arrow.compute.is_in(table[KEY], known))) for table in tables]
        tables.insert(0, whole)
    if not tables:
        return arrow.table({})
    # Files of earlier releases have no times.
    table = arrow.concat_tables(tables, promote_options="default").sort_by([(name, "ascending") for name in ORDER])
    return table.combine_chunks().replace_schema_metadata(header)


def _append(path: Path, data: bytes) -> None:
    """Append `data` to a file and flush it to disk, completely or not at all."""
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            left = data
            while left:
                left = left[os.write(file.fileno(), left) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


def _whole_lines(path: Path) -> list[bytes]:
    try:
        *lines, _unfinished = path.read_bytes().split(b"\n")
    except FileNotFoundError:  # the grid has just finished: all rows are in the results file
        return []
    return lines


def _file_header(path: Path) -> dict[str, Any]:
    _, arrow, parquet = packages()
    try:
        metadata = parquet.read_schema(path).metadata or {}
        return dict(json.loads(metadata[b"kvviz"]))
    except (arrow.ArrowInvalid, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a system error, such as no permission; Arrow's errors for damaged files have no number
        raise IncompatibleFileError(f"read {path}", "another kind of file", "one that kvviz.evaluate wrote") from error


def _journal_header(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise IncompatibleFileError(f"read {path}", error, "the header that kvviz.evaluate wrote") from error


def packages() -> tuple[Any, Any, Any]:
    """The modules pandas, pyarrow and pyarrow.parquet. Raises MissingDependencyError without pyarrow."""
    import pandas

    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("evaluate", "pyarrow", "evaluate") from error
    return pandas, pyarrow, pyarrow.parquet
