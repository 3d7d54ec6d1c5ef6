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


def measure(tokens: int = 8192, steps: int = 64, budget: int = 512, *, live: bool = True) -> dict[str, list[float]]:
    """Milliseconds by what was measured, on the page without a kernel and, if `live`, in JupyterLab."""
    shape = {"prompt_length": tokens, "steps": steps, "budget": budget, "layers": (14, 29)}
    times = {}
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(**chromium_arguments())
        DecodeStepper(prose_recording(**shape)).to_html(folder / "page.html")
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto((folder / "page.html").as_uri())
        page.wait_for_selector(".kv-attended[data-position]")
        times["page_step_ms"] = step_ms(page, min(30, steps - 1))
        times["page_layer_ms"] = [page.evaluate(LAYER, "29"), page.evaluate(LAYER, "14")]
        if live:
            (folder / "lab").mkdir()
            (folder / "private").mkdir()
            imports = "from tests.browser.recordings import prose_recording\nfrom kvviz.widgets import DecodeStepper"
            notebook = write_notebook(
                folder / "lab" / "step.ipynb", f"{imports}\nDecodeStepper(prose_recording(**{shape}))"
            )
            with lab_page(notebook, browser, folder / "private") as lab:
                run_all(lab)
                lab.wait_for_selector(".kv-attended[data-position]")
                times["lab_step_ms"] = step_ms(lab, min(30, steps - 1))
                times["lab_layer_ms"] = [lab.evaluate(LAYER, "29")]  # packed by the kernel
        browser.close()
    return times


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--live", action="store_true", help="measure in JupyterLab too")
    options = parser.parse_args()
    for name, values in measure(options.tokens, options.steps, options.budget, live=options.live).items():
        print(f"{name}: median {statistics.median(values):.0f}, worst {max(values):.0f}, n={len(values)}")


if __name__ == "__main__":
    main()
