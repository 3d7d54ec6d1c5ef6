"""Pictures of every widget, to look at: `python -m tests.browser.screenshots FOLDER [widget ...]`.

Each widget is a page without a kernel, with recorded data of the model, at the widths of a telephone, a notebook's cell
and a wide window, light and dark. The pictures are FOLDER/WIDGET-WIDTH-SCHEME.png, as high as the page.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from kvviz.trace import Recording, Trace
from kvviz.trace.diagnosis import Diagnosis
from kvviz.widgets import (
    BudgetExplorer,
    ClusterInspector,
    DecodeStepper,
    MechanismStepper,
    MethodComparer,
    MissInspector,
)
from tests.widgets.predictions import ANSWERS, prediction

from .lab import ROOT, chromium_arguments

DATA = ROOT / "data"
WIDTHS, SCHEMES = (390, 800, 1280), ("light", "dark")
COMPARED = ("clusterkv-400-clusters", "quest", "pqcache", "ctkvr")
READY = ".kvviz .kv-attended[data-position], .kv-question"


def _recording(name: str) -> Recording:
    return Recording.load(DATA / "recordings" / f"needle-{name}.safetensors")


def _trace() -> Trace:
    return Trace.load(DATA / "traces" / "prose.safetensors")


# Each function writes the page of one widget, with data that it loads when it is asked for.
WIDGETS: dict[str, Callable[[Path], object]] = {
    "stepper": lambda path: DecodeStepper(_recording(COMPARED[0]), step=3, layer=23, head=0).to_html(path),
    "comparer": lambda path: MethodComparer([_recording(name) for name in COMPARED], step=3, layer=23).to_html(path),
    "explorer": lambda path: BudgetExplorer(_trace(), method="quest").to_html(path),
    "inspector": lambda path: ClusterInspector(_trace(), token=100).to_html(path),
    "misses": lambda path: MissInspector(Diagnosis.load(DATA / "diagnoses" / "misses-quest.safetensors")).to_html(path),
    "mechanism": lambda path: _mechanism().to_html(path),
    "prediction": lambda path: prediction(answers=ANSWERS, revealed=True).to_html(path),
}


def _mechanism() -> MechanismStepper:
    made = MechanismStepper(_trace(), "clusterkv", layer=14, head=1)
    made.frame = len(made.scene.frames) - 1
    return made


def pictures(browser: Browser, folder: Path, names: Iterable[str] = WIDGETS) -> Iterator[Path]:
    """The picture of each widget at each width in each scheme, once it is written. Raises if a page's script fails."""
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            path = Path(temporary) / f"{name}.html"
            WIDGETS[name](path)
            for width in WIDTHS:
                for scheme in SCHEMES:
                    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                    errors: list[str] = []
                    page.on("pageerror", lambda error, errors=errors: errors.append(error.stack or str(error)))
                    page.goto(path.as_uri())
                    page.wait_for_selector(READY)
                    page.wait_for_timeout(300)  # texts scroll to their place in the next frames
                    assert not errors, "\n".join(errors)
                    picture = folder / f"{name}-{width}-{scheme}.png"
                    page.screenshot(path=picture, full_page=True)
                    page.close()
                    yield picture


def main() -> None:
    """Write the pictures that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("widgets", nargs="*", default=[*WIDGETS], help=f"some of {', '.join(WIDGETS)}; default: all")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**chromium_arguments())
        for picture in pictures(browser, options.folder, options.widgets):
            print(picture, flush=True)
        browser.close()


if __name__ == "__main__":
    main()
