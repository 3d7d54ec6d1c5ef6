"""Make the recorded traces, recordings, diagnoses, timelines and tables for notebooks that run without the model.

    python data/make.py                  everything
    python data/make.py --only needle    one recipe; the files of the others stay
    python data/make.py --out FOLDER     into another folder

Each file holds the result of a function in notebooks/runs; a live notebook calls the same function. All files are made
in a temporary folder and moved at the end, card.json last. A file whose content has not changed, measured times aside,
is kept, so that a second run on the same machine changes only the timelines, which hold nothing but times. One thread
computes, since rounding depends on the number of threads.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import kvviz
from notebooks.runs import files
from notebooks.runs.recipes import MODEL, MODEL_LICENCE, RECIPES, SEED, SEVERAL, TEXT_LICENCE, Recipe

HERE = Path(__file__).resolve().parent
FOLDERS = {
    "trace": "traces", "recordings": "recordings", "diagnoses": "diagnoses", "timelines": "timelines",
    "table": "tables",
}  # fmt: skip
TIMES = {"recordings": list(files.TIMES), "timelines": ["start_ns", "end_ns"]}  # arrays of measured times
PACKAGES = ("kvviz", "numpy", "torch", "transformers", "safetensors")
MOST_BYTES, MOST_BYTES_IN_ALL = 5_000_000, 24_000_000  # per file, and for all files except tables


def main() -> int:
    """Make what the command line asks for, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=RECIPES, action="append", help="a recipe to run; may be repeated")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to write to, by default this one")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    old = card_of(options.out)
    torch.set_num_threads(1)
    lm = kvviz.load(MODEL, device="cpu")  # even if there is a GPU, so that everybody gets the same files
    with tempfile.TemporaryDirectory(dir=options.out, prefix=".making-") as folder:
        new, seconds = {}, {}
        for name in options.only or RECIPES:
            started = time.perf_counter()
            for entry in made(lm, name, RECIPES[name], Path(folder)):
                new[entry["path"]] = entry
            seconds[name] = time.perf_counter() - started
            print(f"{name}: {seconds[name]:.0f} s", flush=True)
        same = {path for path, entry in new.items() if unchanged(options.out, entry, old.get(path))}
        new |= {path: old[path] for path in same}
        kept = {path: entry for path, entry in old.items() if entry["recipe"] in RECIPES.keys() - seconds.keys()}
        entries = sorted((kept | new).values(), key=lambda entry: list(RECIPES).index(entry["recipe"]))
        if problem := too_large(entries):
            print(f"{problem}; nothing was replaced", file=sys.stderr)
            return 1
        for path in new.keys() - same:
            (options.out / path).parent.mkdir(exist_ok=True)
            os.replace(Path(folder) / path, options.out / path)
        if entries != list(old.values()):
            files.write_card(options.out, entries)
        for path in old.keys() - {entry["path"] for entry in entries}:
            (options.out / path).unlink(missing_ok=True)
    for entry in entries:
        state = "kept" if entry["path"] in kept else "the same" if entry["path"] in same else "new"
        print(f"{entry['path']:55} {entry['bytes'] / 1e6:6.2f} MB  {state}")
    print(f"{'in all':55} {sum(entry['bytes'] for entry in entries) / 1e6:6.2f} MB")
    return 0


def made(lm: Any, name: str, recipe: Recipe, folder: Path) -> Iterator[dict[str, Any]]:
    """The card's entries of a recipe's results; their files are written below `folder`."""
    result = recipe.make(lm)
    for label, value in result.items() if recipe.kind in SEVERAL else [("", result)]:
        slug = re.sub(r"[^a-z0-9]+", "-", label.lower())
        path = Path(FOLDERS[recipe.kind]) / f"{name}{'-' if slug else ''}{slug}{suffix_of(recipe)}"
        (folder / path).parent.mkdir(exist_ok=True)
        files.save(folder / path, value)
        yield {
            "path": path.as_posix(), "recipe": name, "label": label, "kind": recipe.kind,
            "made": datetime.now(UTC).date().isoformat(), "model": lm.name,
            "model_licence": MODEL_LICENCE, "dtype": str(lm.model.dtype).removeprefix("torch."), "text": recipe.text,
            "text_licence": TEXT_LICENCE, "seed": SEED,
            "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
            "times": TIMES.get(recipe.kind, []),
            "bytes": (folder / path).stat().st_size, "sha256": files.sha256(folder / path),
            "content_sha256": files.content_sha256(folder / path, recipe.kind),
        }  # fmt: skip


def suffix_of(recipe: Recipe) -> str:
    """The suffix of a recipe's files."""
    return ".json" if recipe.kind == "table" else ".safetensors"


def card_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of the existing card, by path; {} if it is missing or cannot be read."""
    if not (folder / files.CARD).exists():
        return {}
    try:
        return {entry["path"]: entry for entry in files.read_card(folder)}
    except kvviz.IncompatibleFileError as error:
        print(f"made anew: {error}", file=sys.stderr)
        return {}


def unchanged(folder: Path, entry: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether the existing file is as the card describes it, and has the same content as the new one."""
    if before is None or before["content_sha256"] != entry["content_sha256"]:
        return False
    path = folder / before["path"]
    return path.is_file() and files.sha256(path) == before["sha256"]


def too_large(entries: list[dict[str, Any]]) -> str:
    """Which files are too large for the repository, or ""."""
    for entry in entries:
        if entry["bytes"] > MOST_BYTES:
            return f"{entry['path']} has {entry['bytes']:,} bytes, of at most {MOST_BYTES:,}"
    total = sum(entry["bytes"] for entry in entries if entry["kind"] != "table")
    return (
        f"all files but the tables have {total:,} bytes, of at most {MOST_BYTES_IN_ALL:,}"
        if total > MOST_BYTES_IN_ALL
        else ""
    )


if __name__ == "__main__":
    sys.exit(main())
