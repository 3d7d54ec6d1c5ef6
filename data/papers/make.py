"""Draw the pages that set the papers' figures and tables beside ours, from stored results, without a model.

python data/papers/make.py                           all pages and pictures
python data/papers/make.py --only ctkvr-fig-8        one picture, and all pages
python data/papers/make.py --dark --out FOLDER       dark SVGs instead, which the site shows in its dark theme
python data/papers/make.py --measure overlap_of_ann  measure something again first; "missing" is all that was never
                                                     measured at its sizes, "gpu" all that needs a GPU
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import platform
import sys
import time
from pathlib import Path
from typing import Any

import entries
import kaleido
import measures
import paper_pages
import sources
from entries import ENTRIES, Entry, Finding, wanted
from measures import MEASURES

from kvviz import plots
from kvviz.plots.export import browser_page, save_dark

HERE = Path(__file__).resolve().parent
PICTURES = "pictures"
DPI = 110  # for a page on a screen
MOST_BYTES, MOST_BYTES_IN_ALL = 120_000, 6_000_000
PACKAGES = ("kvviz", "torch", "transformers", "numpy", "scikit-learn", "faiss-cpu")

for package in (entries, measures):  # no list to edit: each file adds its functions when it is imported
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def main() -> int:
    """Measure and draw what the command line asks for, and return the exit status."""
    choices = sorted(entry.slug for entry in ENTRIES.values())
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", choices=choices, metavar="PICTURE", action="append", help="draw only this; may be repeated"
    )
    parser.add_argument(
        "--measure", choices=[*sorted(MEASURES), "missing", "gpu"], metavar="NAME", action="append", default=[],
        help="measure first; may be repeated",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="only list the measurements, and which were made")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder of pages and pictures, by default this one")
    parser.add_argument("--dark", action="store_true", help="write dark SVGs to --out, and nothing else")
    options = parser.parse_args()
    if options.list:
        for name, each in sorted(MEASURES.items()):
            state = "needs a GPU" if each.gpu else "missing"
            if sources.path_of(name).exists():
                state = "stored" if sources.whole(name) else "stored at other sizes"
            print(f"{name:32} {state}")
        return 0
    for name in chosen(options.measure):
        measure(name)
    missing = [f"{paper} {item}" for paper, item in wanted() if (paper, item) not in ENTRIES]
    findings = {key: entry.finding() for key, entry in ENTRIES.items()}
    if options.dark:
        draw_dark(findings, options.out)
        return 0
    (options.out / PICTURES).mkdir(parents=True, exist_ok=True)
    draw(
        {key: findings[key] for key, entry in ENTRIES.items() if not options.only or entry.slug in options.only},
        options.out,
    )
    for name, text in paper_pages.written(findings).items():
        (options.out / name).write_text(text, encoding="utf-8")
    problems = [f"without an entry: {', '.join(missing)}"] if missing else []
    problems += too_large(options.out / PICTURES)
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


def chosen(names: list[str]) -> list[str]:
    """The measurements that `--measure` names."""
    here = [name for name, each in sorted(MEASURES.items()) if not each.gpu]
    groups = {
        "missing": [name for name in here if not sources.whole(name)],
        "gpu": [name for name, each in sorted(MEASURES.items()) if each.gpu],
    }
    return list(dict.fromkeys(each for name in names for each in groups.get(name, [name])))


def measure(name: str) -> None:
    """Make one measurement and store its rows."""
    import torch

    import kvviz
    from kvviz.models.provenance import commit, hardware, installed

    each = MEASURES[name]
    if each.gpu and not torch.cuda.is_available():
        raise kvviz.KVVizError(f"measure {name}", "no NVIDIA GPU", "one")
    device = "cuda" if each.gpu else "cpu"
    lm = kvviz.load(measures.MODEL, device=device)
    started = time.perf_counter()
    rows = each.run(lm)
    about: dict[str, Any] = {
        "model": lm.name, "sizes": each.sizes, "seed": measures.SEED, "seconds": round(time.perf_counter() - started),
        "hardware": hardware(device), "threads": torch.get_num_threads(), "python": platform.python_version(),
        "versions": {package: installed(package) for package in PACKAGES}, "commit": commit(),
    }  # fmt: skip
    sources.store(name, rows, about)
    print(f"{name}: {len(rows)} rows in {about['seconds']} s", flush=True)


def draw(findings: dict[tuple[str, str], Finding], folder: Path) -> None:
    """Save the pictures of these findings: ours, and the paper's numbers in the same style."""
    kaleido.start_sync_server(silence_warnings=True, **browser_page())
    try:
        for key, finding in findings.items():
            for path, figure in pictures(ENTRIES[key], finding).items():
                saved = plots.save(figure(), folder / path, width="column", dpi=DPI)
                print(f"{path:48} {saved.stat().st_size / 1e3:6.0f} kB", flush=True)
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
    kept = {path for key, entry in ENTRIES.items() for path in pictures(entry, findings.get(key) or entry.finding())}
    for file in (folder / PICTURES).glob("*.png"):
        if f"{PICTURES}/{file.name}" not in kept:
            file.unlink()


def draw_dark(findings: dict[tuple[str, str], Finding], folder: Path) -> None:
    """Write the same pictures to a folder as dark SVGs."""
    folder.mkdir(parents=True, exist_ok=True)
    kaleido.start_sync_server(silence_warnings=True, **browser_page())
    try:
        for key, finding in findings.items():
            for path, figure in pictures(ENTRIES[key], finding).items():
                save_dark(figure(), folder / f"{Path(path).stem}.svg")
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


def pictures(entry: Entry, finding: Finding) -> dict[str, entries.Draw]:
    """The paths of a finding's pictures, and what draws them."""
    drawn = {f"{PICTURES}/{entry.slug}.png": finding.draw, f"{PICTURES}/{entry.slug}-published.png": finding.published}
    return {path: figure for path, figure in drawn.items() if figure is not None}


def too_large(folder: Path) -> list[str]:
    """Which pictures are too large for the repository."""
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    problems = [
        f"{name} has {size:,} bytes, of at most {MOST_BYTES:,}" for name, size in sizes.items() if size > MOST_BYTES
    ]
    if sum(sizes.values()) > MOST_BYTES_IN_ALL:
        problems.append(f"all pictures have {sum(sizes.values()):,} bytes, of at most {MOST_BYTES_IN_ALL:,}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
