"""Find the retrieval heads of the bundled model again: `make gates`. A few minutes on two free cores.

    python data/gates/make.py [--out FILE]

The gates are those of `kvviz.find_retrieval_heads` with its defaults, on Python's reference manual. One thread
computes, since rounding depends on the number of threads.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

import kvviz
from notebooks.runs.recipes import MODEL, manual

FILE = Path(__file__).resolve().parent / f"{MODEL}.json"


def main() -> int:
    """Make the file, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE, help="the file to write, by default the one of this folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lm = kvviz.load(MODEL, device="cpu")
    started = time.perf_counter()
    found = kvviz.find_retrieval_heads(lm, manual())
    path = found.save(options.out)
    print(f"{path}: distance {found.settings['distance']}, {time.perf_counter() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
