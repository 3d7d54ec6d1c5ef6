"""Time from a key press to the new frame in the comparer: `python -m tests.browser.comparer_latency` prints ms."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from kvviz.widgets import MethodComparer

from .lab import chromium_arguments, lab_page, run_all, write_notebook
from .latency import step_ms
from .recordings import prose_recording

SHOWN = ".kv-comparer .kv-agreed[data-position]"
LIVE = """
from tests.browser.recordings import prose_recording
from kvviz.widgets import MethodComparer
names = ("clusterkv", "quest", "pqcache", "ctkvr")
MethodComparer({{name: prose_recording(seed=seed, **{shape}).replace(method=name)
    for seed, name in enumerate(names[:{methods}])}})
"""


def measure(
    tokens: int = 8192, steps: int = 32, budget: int = 512, methods: int = 4, *, live: bool = False
) -> dict[str, list[float]]:
    """Milliseconds by what was measured, on the page without a kernel and, if `live`, in JupyterLab."""
    shape = {"prompt_length": tokens, "steps": steps, "budget": budget, "layers": (14,)}
    runs = {f"method {seed}": prose_recording(seed=seed, **shape) for seed in range(methods)}
    times = {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(**chromium_arguments())
        for key, sort in (("page_step_ms", "given"), ("page_sorted_step_ms", "recall")):
            MethodComparer(runs, sort=sort).to_html(folder / "page.html")
            page = browser.new_page(viewport={"width": 1200, "height": 1000})
            page.goto((folder / "page.html").as_uri())
            page.wait_for_selector(SHOWN)
            times[key] = step_ms(page, steps - 1)
            page.close()
        if live:
            (folder / "lab").mkdir()
            (folder / "private").mkdir()
            notebook = write_notebook(folder / "lab" / "step.ipynb", LIVE.format(shape=shape, methods=methods))
            with lab_page(notebook, browser, folder / "private") as lab:
                run_all(lab)
                lab.wait_for_selector(SHOWN)
                times["lab_step_ms"] = step_ms(lab, steps - 1)
        browser.close()
    return times


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--methods", type=int, default=4)
    parser.add_argument("--live", action="store_true", help="measure in JupyterLab too")
    options = parser.parse_args()
    for name, values in measure(options.tokens, methods=options.methods, live=options.live).items():
        print(f"{name}: median {statistics.median(values):.0f}, worst {max(values):.0f}, n={len(values)}")


if __name__ == "__main__":
    main()
