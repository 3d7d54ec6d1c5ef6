"""Versioned safetensors files: written whole or not at all, read by memory-mapping, never pickled."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from .errors import IncompatibleFileError

NUMPY_DTYPES = {"F16": "<f2", "F32": "<f4", "I32": "<i4", "I64": "<i8", "U8": "|u1"}


def write_arrays(
    path: str | os.PathLike[str], kind: str, version: int, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]
) -> Path:
    """Write named arrays and JSON-able metadata to one safetensors file; returns its path.

    The file appears whole or not at all: it is written beside its place under another name and then renamed.
    """
    path = Path(path)
    text = {"kind": kind, "version": str(version), "metadata": json.dumps(metadata)}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        save_file({key: np.ascontiguousarray(value) for key, value in arrays.items()}, name, metadata=text)
        os.chmod(name, 0o644)  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


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
        raise IncompatibleFileError(operation, f"a damaged or truncated file ({error})", "a whole safetensors file") from error
    if text.get("kind") != kind:
        raise IncompatibleFileError(operation, f"a file of kind {text.get('kind')!r}", f"kind {kind!r}")
    if text.get("version") != str(version):
        raise IncompatibleFileError(operation, f"format version {text.get('version')}", f"version {version}")
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    arrays = {
        name: _map(path, 8 + header_bytes, entry) for name, entry in header.items() if name != "__metadata__"
    }
    return arrays, json.loads(text["metadata"])


def _map(path: Path, start: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(NUMPY_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if 0 in shape:  # an empty range cannot be mapped
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", start + entry["data_offsets"][0], shape)
