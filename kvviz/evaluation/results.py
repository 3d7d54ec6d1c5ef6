"""Results on disk: finished cells in a journal, one whole Parquet file at the end."""

from __future__ import annotations

import itertools
import json
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
KEY = "key"
# What rows are sorted by: the same order whoever finished first.
ORDER = ["task", "placement", "length", "sample", "seed", "method", "budget", "turn", KEY]
BATCH = 200  # cells that are Python objects at a time; Arrow holds all rows in a fraction of their memory
Row = dict[str, Any]
Writer = Callable[[str, list[Row]], None]


class Journal:
    """The folder beside a results file that holds the cells finished so far, while a grid runs.

    Whoever runs a sample appends to a file of its own, one line a cell, which is on the disk before the next cell
    starts. What a crash cuts off is one line without an end, which is not read.
    """

    def __init__(self, out: str | os.PathLike[str]) -> None:
        self.folder = Path(f"{os.fspath(out)}.cells").absolute()  # a worker may have another working directory
        self.header = self.folder / "header.json"

    def writer(self, sample: str) -> Writer:
        """A function that puts a finished cell's rows on the disk; nothing of them is there where that fails.

        `sample` names the sample that the cells are of.
        """
        path = self.folder / f"{sample}-{uuid.uuid4().hex}.jsonl"

        def write(key: str, rows: list[Row]) -> None:
            line = json.dumps({KEY: key, "rows": rows}, ensure_ascii=False) + "\n"
            with self.kept():
                _append(path, line.encode())

        return write

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A block that a full disk may stop: its error says where the finished cells are."""
        try:
            yield
        except OSError as error:
            error.add_note(f"The cells finished before are in {self.folder}; the same call goes on from there.")
            raise

    def cells(self, sample: str = "*") -> Iterator[tuple[str, list[Row]]]:
        """Key and rows of every finished cell, or of a sample's; one that two processes finished comes once.

        Raises IncompatibleFileError for a whole line that holds no cell.
        """
        seen = set()
        for path in sorted(self.folder.glob(f"{sample}-*.jsonl")):
            for number, line in enumerate(_whole_lines(path)):
                try:
                    cell = json.loads(line)
                    key, rows = cell[KEY], cell["rows"]
                except (ValueError, KeyError, TypeError) as error:
                    got = f"line {number + 1}, which is no finished cell ({error})"
                    raise IncompatibleFileError(f"read {path}", got, "lines that kvviz.evaluate wrote") from error
                if key not in seen:
                    seen.add(key)
                    yield key, rows

    def keys(self, sample: str = "*") -> set[str]:
        """The keys of all finished cells, or of a sample's."""
        return {key for key, _ in self.cells(sample)}


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
        _, _, parquet = packages()
        if not self.path.parent.is_dir():
            raise InvalidInputError("evaluate: out", f"no folder {self.path.parent}", "an existing folder")
        if self.path.is_dir():
            raise InvalidInputError("evaluate: out", f"the folder {self.path}", "a file")
        self._check_file()
        with self._locked():
            self._check_file()  # what another process may have written in between
            self._start_journal()
            finished = self.journal.keys()
            if self.path.exists():
                finished.update(parquet.read_table(self.path, columns=[KEY])[KEY].to_pylist())
            yield finished

    def finish(self) -> None:
        """Write all rows, sorted, to the Parquet file, whole or not at all, and remove the journal.

        A file that has them all already is left as it is.
        """
        _, _, parquet = packages()
        if not self.path.exists() or self.journal.keys():
            header = {"kvviz": json.dumps(self.header, sort_keys=True)}
            whole = self.journal.folder / "whole.parquet"  # goes with the journal, whatever stops this
            with self.journal.kept():
                parquet.write_table(_rows(self.path, self.journal, header), whole, compression="zstd")
                with whole.open("rb+") as file:
                    os.fsync(file.fileno())  # before the journal, which is on the disk, is removed
                os.replace(whole, self.path)
        # Workers of a cluster whose grid was stopped may write on for a while: what is left goes with the next call.
        shutil.rmtree(self.journal.folder, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        self.journal.folder.mkdir(exist_ok=True)
        file = self.journal.folder / "lock"
        busy = InvalidInputError("evaluate: out", f"{self.path}, which another process writes", "another file")
        try:
            held = FileLock(file, timeout=0).acquire()
        except Timeout as error:
            raise busy from error
        with held:
            if not file.exists():  # the other process has finished in between, and removed it
                raise busy
            yield

    def _start_journal(self) -> None:
        if self.journal.header.exists():
            self._check_same(self.journal.folder, _journal_header(self.journal.header))
            return
        with replacing(self.journal.header) as partial:
            partial.write_text(json.dumps(self.header, sort_keys=True))

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
    """The rows of a results file as a table, those of a grid that is still running, or was stopped, included.

    One row a turn: the columns of the file, and one for each of the samples' `details` ("depth"). `attrs` has the
    file's header: model, model_hash, version. Raises IncompatibleFileError for a file that `kvviz.evaluate` did not
    write, or wrote in another version, and InvalidInputError where there is none or no cell is finished.
    """
    pandas, _, _ = packages()
    path, journal = Path(path), Journal(path)
    header = _file_header(path) if path.exists() else {}
    if not header and journal.header.exists():
        header = _journal_header(journal.header)
    if not header and not path.exists():  # a grid may have finished just now
        raise InvalidInputError("load results", f"no file {path}", "one that kvviz.evaluate wrote")
    header = header or _file_header(path)
    if header.get("version") != VERSION:
        raise IncompatibleFileError(f"read {path}", f"version {header.get('version')!r}", f"version {VERSION}")
    table = _rows(path, journal).to_pandas()
    if table.empty:
        raise InvalidInputError("load results", f"{path} without a finished cell", "at least one")
    details = pandas.DataFrame([json.loads(text) for text in table["details"]])
    whole: pd.DataFrame = pandas.concat([table, details[details.columns.difference(table.columns, sort=False)]], axis=1)
    whole.attrs.update(header)
    return whole


def _rows(path: Path, journal: Journal, header: Mapping[str, str] | None = None) -> Any:
    """All rows of the file and its journal, each cell once, sorted, as an Arrow table with `header` as its metadata."""
    _, arrow, parquet = packages()
    cells = ([{KEY: key, **row} for row in rows] for key, rows in journal.cells())
    tables = []
    while batch := list(itertools.chain.from_iterable(itertools.islice(cells, BATCH))):
        tables.append(arrow.Table.from_pylist(batch))
    if path.exists():  # asked after the journal is read, which is removed once the file is there
        whole = parquet.read_table(path).replace_schema_metadata(None)
        known = whole[KEY].combine_chunks()
        tables = [table.filter(arrow.compute.invert(arrow.compute.is_in(table[KEY], known))) for table in tables]
        tables.insert(0, whole)
    if not tables:
        return arrow.table({})
    table = arrow.concat_tables(tables).sort_by([(name, "ascending") for name in ORDER])
    return table.combine_chunks().replace_schema_metadata(header)


def _append(path: Path, data: bytes) -> None:
    """Put `data` at the end of a file and on the disk, whole or not at all."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            left = data
            while left:
                left = left[os.write(file.fileno(), left) :]
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), before)
            raise


def _whole_lines(path: Path) -> list[bytes]:
    try:
        *lines, _unfinished = path.read_bytes().split(b"\n")
    except FileNotFoundError:  # the grid has just finished: all rows are in its file
        return []
    return lines


def _file_header(path: Path) -> dict[str, Any]:
    _, arrow, parquet = packages()
    try:
        metadata = parquet.read_schema(path).metadata or {}
        return dict(json.loads(metadata[b"kvviz"]))
    except (arrow.ArrowInvalid, KeyError, OSError, TypeError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the system's, such as no permission; Arrow's, of a damaged file, have no number
        raise IncompatibleFileError(f"read {path}", "another kind of file", "one that kvviz.evaluate wrote") from error


def _journal_header(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, TypeError, ValueError) as error:
        raise IncompatibleFileError(f"read {path}", error, "the header that kvviz.evaluate wrote") from error


def packages() -> tuple[Any, Any, Any]:
    """pandas, pyarrow and pyarrow.parquet; raises MissingDependencyError without pyarrow."""
    import pandas

    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("evaluate", "pyarrow", "evaluate") from error
    return pandas, pyarrow, pyarrow.parquet
