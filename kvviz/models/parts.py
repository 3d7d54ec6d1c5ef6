"""Model files that are split over several packages: joined once, in the cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import IncompatibleFileError
from ..trace.storage import replacing
from .dequantized import folder, writing


def package_folders(package: str) -> list[Path]:
    """The folders of an installed package, which is not imported; none if it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def part_files(packages: Sequence[str]) -> list[Path] | None:
    """The file `*.gguf.part*` of each package, in the packages' order; None if one of them is not there."""
    found = [next(_parts_in(package), None) for package in packages]
    files = [path for path in found if path is not None]
    return files if len(files) == len(packages) else None


def joined(parts: Sequence[Path], sha256: str) -> Path:
    """Path of the parts joined to one file in the cache folder; its content is verified at every use.

    Raises IncompatibleFileError if the joined parts have another SHA-256, and KVVizError if the cache folder cannot be
    written; nothing half-written is left.
    """
    place = folder() / f"{parts[0].name.partition('.gguf')[0]}.gguf"
    if place.is_file() and _digest(place) == sha256:
        return place
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as partial:
            with partial.open("wb") as whole:
                for part in parts:
                    with part.open("rb") as piece:
                        shutil.copyfileobj(piece, whole)
            if (digest := _digest(partial)) != sha256:
                got = f"parts with SHA-256 {digest[:16]}…"
                raise IncompatibleFileError(f"join {place.name}", got, f"{sha256[:16]}…: install them again")
    return place


def _parts_in(package: str) -> Iterator[Path]:
    return (path for place in package_folders(package) for path in sorted(place.rglob("*.gguf.part*")))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
