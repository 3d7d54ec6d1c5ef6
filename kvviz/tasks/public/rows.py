"""Rows of public datasets, read with the library `datasets`, which memory-maps them."""

from __future__ import annotations

import glob
import importlib
import importlib.util
import random
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import IncompatibleFileError, InvalidInputError, KVVizError, MissingDependencyError, UnknownNameError

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
ZIP = ".zip"
PACKAGES = {"datasets": "datasets", "rouge_score": "rouge-score", "rapidfuzz": "rapidfuzz"}
DAMAGED = (ValueError, FileNotFoundError, StopIteration, zipfile.BadZipFile)  # besides the library's own error
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Where a dataset is, and which columns it must have.

    `path`, `name`, `data_files` and `split` are the arguments of `datasets.load_dataset` for the hub. `stem` is the
    name of the files in a directory; `inside` is the file in the dataset's archive, if it comes as one. A task reads
    `columns`; `advice` says how to get the data by hand.
    """

    title: str
    stem: str
    columns: tuple[str, ...]
    advice: str
    path: str
    name: str | None = None
    data_files: str | None = None
    split: str = "test"
    inside: str | None = None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes that a file may have."""
        return (*READERS, ZIP) if self.inside else tuple(READERS)


def require(operation: str, *modules: str) -> None:
    """Raise MissingDependencyError for a module of the extra `data` that is not installed, without importing any."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingDependencyError(operation, PACKAGES[module], "data")


def files(source: Source, file: str) -> tuple[str, ...]:
    """The paths of the data: `file` itself, or, in a directory, the files named after the dataset's stem.

    These are stem.jsonl, stem.json or stem.parquet, or the shards stem-*. Raises InvalidInputError for a file that is
    missing or of another kind, and UnknownNameError, with near matches, for a directory without such files.
    """
    operation = f"{source.title}: file"
    location = Path(file).expanduser()
    if location.is_dir():
        for suffix in READERS:
            shards = [*location.glob(f"{source.stem}{suffix}"), *location.glob(f"{source.stem}-*{suffix}")]
            if shards:
                return tuple(str(path) for path in sorted(shards))
        stems = {path.stem for path in location.iterdir() if path.suffix in READERS}
        raise UnknownNameError(f"{operation} in the directory {file}", source.stem, stems)
    if not location.is_file():
        raise InvalidInputError(
            operation, f"{file}, which does not exist", f"a file or a directory; to get one, {source.advice}"
        )
    if location.suffix not in source.suffixes:
        raise InvalidInputError(operation, file, f"a name that ends with {' or '.join(source.suffixes)}")
    return (str(location),)


def read(source: Source, file: str | None) -> Any:
    """The rows as a `datasets.Dataset`, memory-mapped and read one by one.

    Raises MissingDependencyError without the library; the errors of `files`; IncompatibleFileError for a damaged file;
    InvalidInputError for a dataset without rows; UnknownNameError, with near matches, for a missing column; KVVizError,
    which says how to get the data, if the hub cannot be reached.
    """
    require(source.title, "datasets")
    if file is None:
        rows = _from_hub(source)
    else:
        paths = files(source, file)
        rows = _from_files(source, paths, tuple(Path(path).stat().st_mtime_ns for path in paths))
    if rows.num_rows == 0:
        raise InvalidInputError(f"read {source.title}", "a dataset without rows", "at least one")
    for column in source.columns:
        if column not in rows.column_names:
            raise UnknownNameError(f"read {source.title}: column", column, rows.column_names)
    return rows


def number(rows: Any, index: int, seed: int) -> int:
    """The row number of sample `index`, in an order shuffled by `seed`.

    Raises InvalidInputError for more samples than rows.
    """
    if index >= rows.num_rows:
        raise InvalidInputError("sample of a dataset", f"number {index}", f"less than {rows.num_rows}, its rows")
    order = list(range(rows.num_rows))
    random.Random(f"rows/{seed}").shuffle(order)
    return order[index]


def text(row: Row, column: str) -> str:
    """The text in a column. Raises IncompatibleFileError for anything else."""
    if not isinstance(row[column], str):
        raise IncompatibleFileError(f"read column {column!r}", type(row[column]).__name__, "a text in every row")
    return str(row[column])


def texts(row: Row, column: str) -> tuple[str, ...]:
    """The texts in a column of lists or of texts; numbers are converted to text.

    Raises IncompatibleFileError for an empty list, or for anything else.
    """
    value = row[column]
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items or not all(isinstance(item, str | int | float) for item in items):
        raise IncompatibleFileError(f"read column {column!r}", repr(value), "a text, or a list of them, in every row")
    return tuple(str(item) for item in items)


@lru_cache(maxsize=8)
def _from_hub(source: Source) -> Any:
    load = importlib.import_module("datasets").load_dataset
    try:
        return load(source.path, source.name, data_files=source.data_files, split=source.split)
    except Exception as error:  # many libraries take part, each with its own errors, and none of them helps the reader
        raise KVVizError(
            f"load {source.title} from the hub", _first_line(error), f"a connection; or {source.advice}"
        ) from None


@lru_cache(maxsize=8)
def _from_files(source: Source, paths: tuple[str, ...], changed: tuple[int, ...]) -> Any:
    """The rows of the files. `changed`, their modification times, is part of the cache's key."""
    datasets = importlib.import_module("datasets")
    suffix = Path(paths[0]).suffix
    names = [glob.escape(path) for path in paths]  # the library takes patterns
    if suffix == ZIP:
        names = [f"zip://{source.inside}::{paths[0]}"]
    try:
        return datasets.load_dataset(READERS.get(suffix, "json"), data_files=names, split="train")
    except (*DAMAGED, datasets.exceptions.DatasetsError) as error:
        got = "no rows" if isinstance(error, StopIteration) else _first_line(error.__cause__ or error)
        wanted = f"rows in JSON lines or Parquet; to get them, {source.advice}"
        raise IncompatibleFileError(f"read {', '.join(paths)}", got, wanted) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": ")
