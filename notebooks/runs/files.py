"""The recorded files, described in data/card.json with their origins and checksums, which are verified."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.trace import Recording, Trace
from kvviz.trace.diagnosis import Diagnosis
from kvviz.trace.storage import read_arrays, replacing
from kvviz.trace.timeline import Timeline

from .recipes import Kind

if TYPE_CHECKING:
    import pandas as pd

CARD = "card.json"
CARD_VERSION, TABLE_VERSION, TABLE_KIND = 1, 1, "kvviz.table"
TIMES = ("select_s",)  # measured seconds: the only content of a recording that differs between runs
Stored = Trace | Recording | Diagnosis | Timeline
STORED: dict[Kind, type[Stored]] = {
    "trace": Trace, "recordings": Recording, "diagnoses": Diagnosis, "timelines": Timeline,
}  # fmt: skip
REMAKE = "the files that `make data` wrote; run it again, or get the folder anew"
_ENTRY = ("path", "recipe", "label", "kind", "made", "model", "bytes", "sha256", "content_sha256")


def find_folder(data: str | os.PathLike[str] | None) -> Path:
    """The folder of the recorded data: `data`, KVVIZ_DATA, the repository's data/, ./data or ../data.

    Raises InvalidInputError if none of them holds a card.json.
    """
    named = data or os.environ.get("KVVIZ_DATA")
    repository = Path(__file__).resolve().parents[2]
    candidates = [Path(named)] if named else [repository / "data", Path("data"), Path("../data")]
    for folder in candidates:
        if (folder / CARD).is_file():
            return folder
    where = ", ".join(map(str, candidates))
    wanted = (
        "the data folder of kvviz's repository: name it with open_runs(data=...) or the environment variable "
        "KVVIZ_DATA, make it with `make data`, or use the live model: open_runs(live=True)"
    )
    raise InvalidInputError("open_runs: recorded data", f"no {CARD} in {where}", wanted)


def read_card(folder: Path) -> list[dict[str, Any]]:
    """The entries of card.json, one per file. Raises IncompatibleFileError for a damaged card or another version."""
    path = folder / CARD
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise IncompatibleFileError(f"read {path}", f"no JSON ({error})", REMAKE) from error
    if not isinstance(card, dict) or card.get("version") != CARD_VERSION:
        got = f"version {card.get('version')}" if isinstance(card, dict) else type(card).__name__
        raise IncompatibleFileError(f"read {path}", got, f"a card of version {CARD_VERSION}")
    files = card.get("files")
    if not isinstance(files, list) or not all(
        isinstance(entry, dict) and all(name in entry for name in _ENTRY) for entry in files
    ):
        raise IncompatibleFileError(f"read {path}", "files without their fields", f"{', '.join(_ENTRY)} of every file")
    return files


def write_card(folder: Path, files: list[dict[str, Any]]) -> None:
    """Write card.json atomically."""
    with replacing(folder / CARD) as partial:
        text = json.dumps({"version": CARD_VERSION, "files": files}, indent=2, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")


def load(folder: Path, entry: Mapping[str, Any]) -> Stored | pd.DataFrame:
    """The content of a file in the card. Raises IncompatibleFileError if it is missing or does not match the card."""
    path = folder / entry["path"]
    if not path.is_file():
        raise IncompatibleFileError(f"read {path}", "no such file", REMAKE)
    if sha256(path) != entry["sha256"]:
        raise IncompatibleFileError(f"read {path}", f"{path.stat().st_size:,} bytes with another checksum", REMAKE)
    return read_table(path) if entry["kind"] == "table" else STORED[entry["kind"]].load(path)


def save(path: Path, value: Stored | pd.DataFrame) -> None:
    """Write a result to its file atomically."""
    if isinstance(value, Stored):
        value.save(path)
    else:
        write_table(path, value)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table and its attrs as JSON. Numbers are stored exactly, missing ones as null.

    Raises InvalidInputError for infinity and for columns other than numbers, texts, truth values or mappings.
    """
    columns = []
    for name in table.columns:
        values = [None if value != value else value for value in table[name].tolist()]  # only NaN differs from itself
        kind = {"i": "int64", "f": "float64", "b": "bool"}.get(table[name].dtype.kind, "object")
        if kind == "object" and not all(isinstance(value, str | dict | None) for value in values):
            raise InvalidInputError(f"write {path}: column", str(name), "numbers, texts, truth values or mappings")
        columns.append({"name": str(name), "type": kind, "values": values})
    content = {"kind": TABLE_KIND, "version": TABLE_VERSION, "attrs": dict(table.attrs), "columns": columns}
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"write {path}", error, "finite numbers, texts, truth values or mappings") from error
    with replacing(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


def read_table(path: Path) -> pd.DataFrame:
    """The table that `write_table` wrote, with its attrs. Raises IncompatibleFileError for any other file."""
    import pandas as pd

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["kind"], content["version"]) != (TABLE_KIND, TABLE_VERSION):
            raise ValueError(f"{content['kind']} of version {content['version']}")
        columns = {column["name"]: column["values"] for column in content["columns"]}
        numbers = {column["name"]: column["type"] for column in content["columns"] if column["type"] != "object"}
        table = pd.DataFrame(columns).astype(numbers)
        table.attrs = dict(content["attrs"])
    except (ValueError, KeyError, TypeError) as error:
        wanted = f"a {TABLE_KIND} of version {TABLE_VERSION}"
        raise IncompatibleFileError(f"read {path}", f"another content ({error})", wanted) from error
    return table


def sha256(path: Path) -> str:
    """The checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content_sha256(path: Path, kind: Kind) -> str:
    """The checksum of a file's content, independent of the order of its parts and of a recording's measured times.

    A timeline consists of times, so that every run has another checksum.
    """
    if kind == "table":
        return sha256(path)
    stored = STORED[kind]
    arrays, metadata = read_arrays(path, stored.KIND, stored.VERSION)
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(arrays):
        if name.split(".")[0] not in TIMES:
            digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
            digest.update(arrays[name].tobytes())
    return digest.hexdigest()
