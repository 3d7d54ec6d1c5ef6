"""Draw the plots of kvviz from recorded data, and write the page that shows them, without a model or a network.

This takes about a minute.

    python data/gallery/make.py                     all pictures, README.md and print.md
    python data/gallery/make.py --only kv_memory    one of them, and both pages
    python data/gallery/make.py --dark --out FOLDER    dark SVGs instead, which the site shows in its dark theme
"""

from __future__ import annotations

import argparse
import html
import sys
from pathlib import Path

import kaleido
import print_page
from families import ENTRIES, Entry, attention, costs, misses, scores, similarity

import kvviz
from kvviz import plots
from kvviz.plots.export import browser_page, save_dark

HERE = Path(__file__).resolve().parent
PAGE, PRINT_PAGE = "README.md", "print.md"
FAMILIES = (similarity, attention, misses, scores, costs)
DPI = 150  # for a page on a screen
MOST_BYTES, MOST_BYTES_IN_ALL = 150_000, 3_400_000
INTRODUCTION = """# Gallery

<!-- Written by data/gallery/make.py. -->

The plots of `kvviz.plots`, drawn by `make gallery` from recorded data, without a model or a network. `runs` is
`kvviz.open_runs(live=False)`, which reads the traces, recordings, diagnoses, timelines and tables of this repository
(made by `make data` with SmolLM2-135M-Instruct); `benchmarks` reads those of `make bench` (`data/benchmarks/cpu.json`).
The papers' figures show larger models and longer texts. [Figures for your paper](print.md) says how to print them.
"""


def main() -> int:
    """Make what the command line asks for, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=ENTRIES, action="append", help="a figure to draw; may be repeated")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to write to, by default this one")
    parser.add_argument("--dark", action="store_true", help="write dark SVGs to --out, and nothing else")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = kvviz.open_runs(live=False)
    kaleido.start_sync_server(silence_warnings=True, **browser_page())
    try:
        for name in options.only or ENTRIES:
            entry = ENTRIES[name]
            if options.dark:
                save_dark(entry.draw(runs), options.out / f"{name}.svg", entry.width)
                continue
            path = plots.save(entry.draw(runs), options.out / f"{name}.png", width=entry.width, dpi=DPI)
            print(f"{path.name:32} {path.stat().st_size / 1e3:6.0f} kB", flush=True)
        if options.dark:
            return 0
        (options.out / PRINT_PAGE).write_text(print_page.page(runs), encoding="utf-8")
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
    for path in options.out.glob("*.png"):
        if path.stem not in ENTRIES:
            path.unlink()
    (options.out / PAGE).write_text(page(), encoding="utf-8")
    if problem := too_large(options.out):
        print(problem, file=sys.stderr)
    return 1 if problem else 0


def page() -> str:
    """The text of README.md: one row per figure, by family."""
    parts = [INTRODUCTION]
    for family in FAMILIES:
        rows = [row(entry) for entry in ENTRIES.values() if entry.draw.__module__ == family.__name__]
        parts.append("\n".join([f"## {(family.__doc__ or '').rstrip('.')}\n", "| | |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def row(entry: Entry) -> str:
    """The row of one figure: its picture, and what it shows."""
    picture = f'<img src="{entry.name}.png" width="400" alt="{html.escape(entry.shows)}">'
    return f"| {picture} | **{entry.plot}**<br><br>{about(entry)} |"


def about(entry: Entry) -> str:
    """What a figure shows, the corresponding figure of a paper, and the call."""
    return f"{entry.shows}<br><br>As in: {entry.paper}<br><br>`{entry.call}`".replace("|", "\\|")


def too_large(folder: Path) -> str:
    """Which pictures are too large for the repository, or ""."""
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.png")}
    problems = [
        f"{name} has {size:,} bytes, of at most {MOST_BYTES:,}" for name, size in sizes.items() if size > MOST_BYTES
    ]
    if sum(sizes.values()) > MOST_BYTES_IN_ALL:
        problems.append(f"all pictures have {sum(sizes.values()):,} bytes, of at most {MOST_BYTES_IN_ALL:,}")
    return "\n".join(problems)


if __name__ == "__main__":
    sys.exit(main())
