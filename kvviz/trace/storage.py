"""Versioned safetensors files: written completely or not at all, read by memory-mapping, never pickled."""

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

NUMPY_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "|u1"}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path to write to: it replaces `path` if the block succeeds, and is removed otherwise."""
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
    """Write named arrays and JSON metadata to one safetensors file, and return its path.

    The file is written under a temporary name and then renamed, so that it is never incomplete. Raises
    InvalidInputError for a dtype that `read_arrays` cannot read or metadata that JSON cannot hold, and OSError if the
    file cannot be written (no such folder, no permission, disk full).
    """
    for key, value in arrays.items():
        if value.dtype not in NUMPY_DTYPES.values():
            raise InvalidInputError(f"write {key} to {path}", value.dtype, f"one of {', '.join(NUMPY_DTYPES.values())}")
    text = header_texts(Path(path), kind, version, metadata)
    with replacing(path) as partial:
        try:
            save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, partial, metadata=text)
        except SafetensorError as error:  # safetensors also raises this on a full disk
            raise OSError(f"write {path}: {error}") from error
    return Path(path)


def header_texts(path: Path, kind: str, version: int, metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts in the header of a file. Raises InvalidInputError for metadata that JSON cannot hold."""
    try:
        return {"kind": kind, "version": str(version), "metadata": json.dumps(metadata)}
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"write {path}: metadata", error, "texts, numbers, lists and objects of them"
        ) from error


def read_arrays(
    path: str | os.PathLike[str], kind: str, version: int
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """`(arrays, metadata)` of a file from `write_arrays`: read-only memory-mapped arrays by name.

    Raises IncompatibleFileError for a file that is damaged, not safetensors, or of another kind or version, and
    FileNotFoundError if it does not exist.
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
            operation, f"a damaged or truncated file ({error})", "a complete safetensors file"
        ) from error
    if text.get("kind") != kind:
        raise IncompatibleFileError(operation, f"a file of kind {text.get('kind')!r}", f"kind {kind!r}")
    if text.get("version") != str(version):
        raise IncompatibleFileError(operation, f"format version {text.get('version')}", f"version {version}")
    try:
        metadata = json.loads(text["metadata"])
    except (KeyError, ValueError, RecursionError) as error:
        raise IncompatibleFileError(
            operation, "metadata that is missing or not JSON", "metadata as kvviz writes it"
        ) from error
    if not isinstance(metadata, dict):
        raise IncompatibleFileError(operation, f"metadata of type {type(metadata).__name__}", "a JSON object")
    return _map(path, operation), metadata


def check_metadata(
    metadata: Mapping[str, Any], operation: str, wanted: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> None:
    """Raise IncompatibleFileError unless `metadata` has exactly the names in `wanted`, each of the given kind.

    Names in `optional` may be there too. Kinds: "text", "integer", "object", "objects", "texts", "integers", "numbers",
    "factor" (a positive number, or null).
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
    "objects": lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
    "texts": lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
    "numbers": lambda value: isinstance(value, list) and all(isinstance(item, float) for item in value),
    "integers": lambda value: isinstance(value, list) and all(type(item) is int for item in value),
}


def check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: Any) -> None:
    """Raise IncompatibleFileError unless `array` has this shape and dtype."""
    if array.shape != shape or array.dtype != dtype:
        raise IncompatibleFileError(name, f"{array.dtype} {list(array.shape)}", f"{np.dtype(dtype)} {list(shape)}")


def take(arrays: Mapping[str, NDArray[Any]], name: str, path: object) -> NDArray[Any]:
    """The array with this name. Raises IncompatibleFileError if the file at `path` has none."""
    if name not in arrays:
        raise IncompatibleFileError(f"read {path}", f"no array {name!r}", f"a file with {name!r}")
    return arrays[name]


def by_layer(arrays: Mapping[str, NDArray[Any]], name: str, path: object) -> dict[int, NDArray[Any]]:
    """The arrays `name.0`, `name.1`, ... by layer. Raises IncompatibleFileError if a layer is not a number."""
    layers = {}
    for key, array in arrays.items():
        start, dot, layer = key.partition(".")
        if start == name and dot:
            if not layer.isdecimal():
                raise IncompatibleFileError(f"read {path}", f"an array {key!r}", f"{name}.<layer>")
            layers[int(layer)] = array
    return layers


def _map(path: Path, operation: str) -> dict[str, NDArray[Any]]:
    """All arrays of a checked file, as views of one memory map: one file descriptor per file, not per array."""
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
