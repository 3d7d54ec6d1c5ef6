"""Makes the recorded traces, recordings, timelines and tables that notebooks draw where the model isn't there.

    python data/make.py                  everything
    python data/make.py --only needle    one recipe; the files of the others stay
    python data/make.py --out FOLDER     into another folder

What each file holds is a function in notebooks/runs; a live notebook calls the same one. Everything is made in a
folder of its own first, and takes its place at the end, card.json last. A file whose content is the same as before,
measured times left out, is kept as it is, so that a second run on the same machine changes no file but the timelines,
which are nothing but times. One thread computes, since sums of several would be rounded by how many there are.
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
FOLDERS = {"trace": "traces", "recordings": "recordings", "timelines": "timelines", "table": "tables"}
TIMES = {"recordings": list(files.TIMES), "timelines": ["start_ns", "end_ns"]}  # what the card says is measured
PACKAGES = ("kvviz", "numpy", "torch", "transformers", "safetensors")
MOST_BYTES, MOST_BYTES_IN_ALL = 5_000_000, 20_000_000  # of a file, and of all that are no tables


def main() -> int:
    """Make what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=RECIPES, action="append", help="a recipe to run; may be repeated")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to write to, by default this one")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    old = card_of(options.out)
    torch.set_num_threads(1)
    lm = kvviz.load(MODEL, device="cpu")  # whatever else is there, so that everybody gets the same
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
    """The card's entries of what a recipe makes, each with its file below `folder`."""
    result = recipe.make(lm)
    for label, value in result.items() if recipe.kind in SEVERAL else [("", result)]:
        own = re.sub(r"[^a-z0-9]+", "-", label.lower())
        path = Path(FOLDERS[recipe.kind]) / f"{name}{'-' if own else ''}{own}{suffix_of(recipe)}"
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
    """How the name of a recipe's files ends."""
    return ".json" if recipe.kind == "table" else ".safetensors"


def card_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of the card that is there, by path; none of a card that cannot be read."""
    if not (folder / files.CARD).exists():
        return {}
    try:
        return {entry["path"]: entry for entry in files.read_card(folder)}
    except kvviz.IncompatibleFileError as error:
        print(f"made anew: {error}", file=sys.stderr)
        return {}


def unchanged(folder: Path, entry: dict[str, Any], before: dict[str, Any] | None) -> bool:
    """Whether the file that is there, as the card describes it, says what the new one says."""
    if before is None or before["content_sha256"] != entry["content_sha256"]:
        return False
    path = folder / before["path"]
    return path.is_file() and files.sha256(path) == before["sha256"]


def too_large(entries: list[dict[str, Any]]) -> str:
    """What is larger than the repository should carry, or an empty text."""
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
