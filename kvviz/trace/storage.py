"""Versioned safetensors files: written whole or not at all, read by memory-mapping, never pickled."""

from __future__ import annotations

import json
import os
import reprlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import IncompatibleFileError, InvalidInputError

NUMPY_DTYPES = {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "U8": "|u1"}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends well and is removed otherwise."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"write {path}: no folder {path.parent}")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_arrays(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Any],
) -> Path:
    """Write named arrays and JSON-able metadata to one safetensors file; returns its path.

    The file appears whole or not at all: it is written beside its place under another name and then renamed.
    Raises InvalidInputError for a dtype that `read_arrays` would not read back or metadata that JSON cannot hold, and
    OSError where the file cannot be written (no such folder, no permission, disk full).
    """
    for key, value in arrays.items():
        if value.dtype not in NUMPY_DTYPES.values():
            raise InvalidInputError(f"write {key} to {path}", value.dtype, f"one of {', '.join(NUMPY_DTYPES.values())}")
    try:
        text = {"kind": kind, "version": str(version), "metadata": json.dumps(metadata)}
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"write {path}: metadata", error, "texts, numbers, lists and objects of them"
        ) from error
    with replacing(path) as partial:
        try:
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, partial, metadata=text)
        except SafetensorError as error:  # what safetensors raises on a full disk too
            raise OSError(f"write {path}: {error}") from error
    return Path(path)


def read_arrays(
    path: str | os.PathLike[str], kind: str, version: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Open a file that `write_arrays` wrote: (read-only memory-mapped arrays by name, metadata).

    Raises IncompatibleFileError where the file is no safetensors file, truncated, or of another kind or version,
    and FileNotFoundError where there is none.
    """
    path = Path(path)
    operation = f"read {kind} from {path}"
    if not path.is_file():
        raise FileNotFoundError(f"{operation}: no such file")
    try:
        with safe_open(path, framework="np") as opened:  # checks the header, every offset and the file's length
            text = opened.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise IncompatibleFileError(
            operation, f"a damaged or truncated file ({error})", "a whole safetensors file"
        ) from error
    if text.get("kind") != kind:
        raise IncompatibleFileError(operation, f"a file of kind {text.get('kind')!r}", f"kind {kind!r}")
    if text.get("version") != str(version):
        raise IncompatibleFileError(operation, f"format version {text.get('version')}", f"version {version}")
    try:
        metadata = json.loads(text["metadata"])
    except (KeyError, ValueError, RecursionError) as error:
        raise IncompatibleFileError(
            operation, "metadata that is missing or no JSON", "metadata as kvviz writes it"
        ) from error
    if not isinstance(metadata, dict):
        raise IncompatibleFileError(operation, f"metadata of type {type(metadata).__name__}", "a JSON object")
    return _map(path, operation), metadata


def check_metadata(
    metadata: Mapping[str, Any], operation: str, wanted: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> None:
    """Raise IncompatibleFileError unless `metadata` has exactly the names of `wanted`, each of the kind it asks for.

    Names in `optional` may be there too. Kinds: "text", "integer", "object", "texts", "integers", "factor" (a positive
    number, or null).
    """
    kinds = {**wanted, **(optional or {})}
    for name in [*wanted, *metadata]:
        if name not in metadata or name not in kinds:
            got = f"no {name!r} in the metadata" if name in wanted else f"unknown {name!r} in the metadata"
            raise IncompatibleFileError(operation, got, f"exactly {', '.join(wanted)}")
        if not _KINDS[kinds[name]](metadata[name]):
            got = f"{name} = {reprlib.repr(metadata[name])}"
            raise IncompatibleFileError(operation, got, f"{name} of kind {kinds[name]!r}")


_KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,  # True is an int to isinstance
    "object": lambda value: isinstance(value, dict),
    "factor": lambda value: value is None or (isinstance(value, float) and value > 0),
    "texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "integers": lambda value: isinstance(value, list) and all(type(item) is int for item in value),
}


def check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: Any) -> None:
    """Raise IncompatibleFileError unless `array` has this shape and dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise IncompatibleFileError(name, f"{array.dtype} {list(array.shape)}", f"{np.dtype(dtype)} {list(shape)}")


def take(arrays: Mapping[str, NDArray[Any]], name: str, path: object) -> NDArray[Any]:
    """The array of that name; raises IncompatibleFileError where the file at `path` has none."""
    if name not in arrays:
        raise IncompatibleFileError(f"read {path}", f"no array {name!r}", f"a file with {name!r}")
    return arrays[name]


def by_layer(arrays: Mapping[str, NDArray[Any]], name: str, path: object) -> dict[int, NDArray[Any]]:
    """The arrays called `name.0`, `name.1`, ... by layer; raises IncompatibleFileError where a layer is no number."""
    found = {}
    for key, array in arrays.items():
        start, dot, layer = key.partition(".")
        if start == name and dot:
            if not layer.isdecimal():
                raise IncompatibleFileError(f"read {path}", f"an array {key!r}", f"{name}.<layer>")
            found[int(layer)] = array
    return found


def _map(path: Path, operation: str) -> dict[str, NDArray[Any]]:
    """Every array of a checked file as a view of one memory-mapping: a file descriptor a file, not one an array."""
    whole = np.memmap(path, np.uint8, "r")
    start = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    header = json.loads(whole[8:start].tobytes())
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        if entry["dtype"] not in NUMPY_DTYPES:
            raise IncompatibleFileError(
                operation, f"{name} of dtype {entry['dtype']}", f"one of {', '.join(NUMPY_DTYPES)}"
            )
        begin, end = entry["data_offsets"]
        arrays[name] = whole[start + begin : start + end].view(NUMPY_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays
