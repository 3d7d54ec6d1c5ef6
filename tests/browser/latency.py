"""Time from a key press to the new frame of every widget: `python -m tests.browser.latency --live` prints ms.

The time runs from the browser's time stamp of the event to the first frame that shows the change. On a page without a
kernel it is the time of the widget's JavaScript; in JupyterLab it includes the kernel's work and the messages.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from kvviz.trace import Trace

from .frames import Frame, frames, tour
from .lab import chromium_arguments, empty_lab, run_cell
from .scenes import READY, WIDGETS, Control, Scene, Sizes

TRACE_TOKENS, TRACE_LAYERS = 4096, (14,)


def measure(
    browser: Browser, sizes: Sizes, names: Iterable[str] = WIDGETS, *, live: bool = True
) -> Iterator[dict[str, Any]]:
    """One row per control and widget, first on a page without a kernel, then, if `live`, in JupyterLab.

    A row can be stored as JSON: the control (widget, change, place, size), milliseconds (limit_ms, median_ms, worst_ms,
    and `ms` with all of them in order), and `pictures`, the number of different pictures.
    Raises the errors of `frames.frames`.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        lab = None
        for scene in (scene for name in names for scene in WIDGETS[name](sizes)):
            page = browser.new_page(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")
            scene.open(page, folder)
            page.wait_for_selector(READY, state="attached")
            yield from _press_all(page, scene, scene.on_page, "page")
            page.close()
            if live:
                lab = lab or stack.enter_context(empty_lab(browser, folder))
                lab.emulate_media(reduced_motion="reduce")  # a frame is there at once, and not on its way
                run_cell(lab, scene.cell)
                lab.wait_for_selector(READY, state="attached")
                yield from _press_all(lab, scene, scene.live, "JupyterLab")


def _press_all(page: Page, scene: Scene, controls: Iterable[Control], place: str) -> Iterator[dict[str, Any]]:
    for control in controls:
        element = page.locator(control.selector)
        element.evaluate("node => node.closest('details')?.setAttribute('open', '')")
        changes = tour(element) if control.key is None else repeat(control.key)
        yield _row(scene, control, place, frames(element, islice(changes, control.times)))


def _row(scene: Scene, control: Control, place: str, shown: list[Frame]) -> dict[str, Any]:
    times = [frame.ms for frame in shown]
    return {
        "widget": scene.widget, "change": control.change, "place": place, "size": scene.size,
        "limit_ms": scene.limit_ms, "median_ms": statistics.median(times), "worst_ms": max(times),
        "changes": len(times), "ms": times,
        "pictures": len({frame.picture for frame in shown}),
    }  # fmt: skip


def measure_all(
    names: Iterable[str] = WIDGETS, *, live: bool = True, trace_tokens: int = TRACE_TOKENS, **sizes: int
) -> Iterator[dict[str, Any]]:
    """The rows of `measure` in a new browser, with a trace captured from the model for them.

    A trace longer than the model's positions repeats what was captured, which is about as much work.
    """
    import kvviz
    from notebooks.runs.recipes import MODEL, manual

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path, model = Path(folder) / "trace.safetensors", kvviz.load(MODEL)
        captured = min(trace_tokens, model.geometry.max_positions)
        trace = kvviz.capture(model, manual(), layers=TRACE_LAYERS, max_tokens=captured)
        repeated(trace, trace_tokens).save(path)
        browser = playwright.chromium.launch(**chromium_arguments())
        yield from measure(browser, Sizes(path, **sizes), names, live=live)
        browser.close()


def repeated(trace: Trace, length: int) -> Trace:
    """The trace, again and again up to `length` tokens."""
    order = np.arange(length) % len(trace)
    arrays = {
        name: {layer: array[:, order] for layer, array in getattr(trace, name).items()}
        for name in ("queries", "keys", "values")
    }
    return replace(trace, tokens=[trace.tokens[place] for place in order], token_ids=trace.token_ids[order], **arrays)


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("widgets", nargs="*", default=[*WIDGETS], help=f"some of {', '.join(WIDGETS)}; default: all")
    parser.add_argument("--tokens", type=int, default=Sizes.tokens, help="of the stepper's and comparer's recordings")
    parser.add_argument(
        "--trace-tokens", type=int, default=TRACE_TOKENS, help="of the explorer's and inspector's trace"
    )
    parser.add_argument("--canvas", type=int, default=Sizes.canvas, help="rows and columns")
    parser.add_argument("--live", action="store_true", help="measure in JupyterLab too")
    options = vars(parser.parse_args())
    for row in measure_all(options.pop("widgets"), **options):
        print(_line(row), flush=True)


def _line(row: dict[str, Any]) -> str:
    over = f", OVER {row['limit_ms']} ms" if row["worst_ms"] > row["limit_ms"] else ""
    label = f"{row['widget']}, {row['size']}, {row['place']}: {row['change']}"
    return f"{label}: median {row['median_ms']:.0f} ms, worst {row['worst_ms']:.0f} ms, n={row['changes']}{over}"


if __name__ == "__main__":
    main()
