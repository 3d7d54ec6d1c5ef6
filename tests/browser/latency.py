"""Time from a key press to the new frame in the stepper: `python -m tests.browser.latency --live` prints ms."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from kvviz.widgets import DecodeStepper

from .lab import chromium_arguments, lab_page, run_all, write_notebook
from .recordings import prose_recording

# A frame is on the screen once the task after its animation callback runs.
WATCH = """() => {
    window.frames_ms = [];
    document.addEventListener("keydown", (event) => requestAnimationFrame(() => {
        const after = new MessageChannel();
        after.port1.onmessage = () => window.frames_ms.push(performance.now() - event.timeStamp);
        after.port2.postMessage(null);
    }), true);
}"""
LAYER = """async (layer) => {
    const select = document.querySelector(".kvviz select[aria-label=layer]");
    const line = document.querySelector(".kv-sheet code");
    const start = performance.now();
    select.value = layer;
    select.dispatchEvent(new Event("change"));
    while (!line.textContent.includes(`layer=${layer},`)) await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""


def step_ms(page: Page, steps: int) -> list[float]:
    """Milliseconds from each of `steps` presses of the right arrow key to the frame it caused."""
    slider = page.get_by_role("slider", name="decode step")
    slider.focus()
    page.evaluate(WATCH)
    for step in range(steps):
        slider.press("ArrowRight")
        page.wait_for_function("count => window.frames_ms.length === count", arg=step + 1)
    return [float(value) for value in page.evaluate("() => window.frames_ms")]


def _report(name: str, values: list[float]) -> None:
    print(f"{name}: median {statistics.median(values):.0f} ms, worst {max(values):.0f} ms, n={len(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--live", action="store_true", help="measure in JupyterLab too")
    options = parser.parse_args()
    shape = {"prompt_length": options.tokens, "steps": options.steps, "budget": options.budget, "layers": (14, 29)}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(**chromium_arguments())
        DecodeStepper(prose_recording(**shape)).to_html(folder / "page.html")
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto((folder / "page.html").as_uri())
        page.wait_for_selector(".kv-attended[data-position]")
        _report(f"page without a kernel, {options.tokens:,} tokens, step", step_ms(page, min(30, options.steps - 1)))
        _report("page without a kernel, other layer", [page.evaluate(LAYER, "29"), page.evaluate(LAYER, "14")])
        if options.live:
            (folder / "lab").mkdir()
            (folder / "private").mkdir()
            imports = "from tests.browser.recordings import prose_recording\nfrom kvviz.widgets import DecodeStepper"
            notebook = write_notebook(
                folder / "lab" / "step.ipynb", f"{imports}\nDecodeStepper(prose_recording(**{shape}))"
            )
            with lab_page(notebook, browser, folder / "private") as live:
                run_all(live)
                live.wait_for_selector(".kv-attended[data-position]")
                _report(f"JupyterLab, {options.tokens:,} tokens, step", step_ms(live, min(30, options.steps - 1)))
                _report("JupyterLab, other layer (packed by the kernel)", [live.evaluate(LAYER, "29")])
        browser.close()


if __name__ == "__main__":
    main()
