"""Picture the widgets from recorded data, for README.md and the site, without a model or a network.

    python data/pictures/make.py                     all pictures; this takes some minutes
    python data/pictures/make.py --only clusterkv    one of them
    python data/pictures/make.py --dark --out FOLDER    dark stills instead, which the site shows in its dark theme

They are a moving picture of ClusterKV at work, a still of each of the four papers' methods at work, and a still of each
other widget, and the figures of the primer (docs/primer.md). This needs playwright, kaleido and Pillow, which `make
setup` installs, and a Chromium on the machine.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import kaleido
import plotly.graph_objects as go
from PIL import Image

import kvviz
from kvviz import plots, widgets
from kvviz.plots.export import browser_page, save_dark
from kvviz.trace import Trace

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "notebooks"))

import pictures  # noqa: E402  # not in a package: found by the line above
import primer  # noqa: E402  # likewise
import primer_methods  # noqa: E402  # likewise

HIDDEN = "The special magic number is 7463"
COMPARED = ("clusterkv, 400 clusters", "pqcache", "ctkvr", "quest")
# The chapter of each method's scene whose last frame is its picture.
CHAPTERS = {"clusterkv": "clusters", "centroidkv": "links", "pqcache": "tables", "ctkvr": "nearest"}
# A head that looks far back: sinks and recent tokens hold little of its attention.
PLACE = {"layer": 8, "head": 0, "budget": 128}
FIELDS = {"clusterkv": {"tokens_per_cluster": 20}, "ctkvr": {"sinks": 16, "recent": 16}}  # for a text of 640 tokens
MOVING = "clusterkv_at_work"
MOST_BYTES = 400_000  # of the moving picture
FRAME_MS, LAST_MS = 1500, 4000
# Wide enough for two panels side by side, and narrow enough for the text to be below them.
MOVING_PAGE = {"width": 599, "scale": 2, "part": ".kv-controls", "height": 590}
MOVING_WIDTH, COLOURS = 700, (256, 192, 128, 96, 64)
STILL_PAGE = {"width": 330, "scale": 2}
# The primer's pictures, in its order.
FIGURES: dict[str, Callable[[Trace], go.Figure]] = {
    f"primer_{draw.__name__}": draw for draw in (*primer.FIGURES, *primer_methods.FIGURES)
}
MANY_LAYERS = "layers"  # the trace with several layers; the other is longer
FIGURE_DPI = 200


def main() -> int:
    """Make what the command line asks for, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = (MOVING, *CHAPTERS, *WIDGETS, *FIGURES)
    parser.add_argument("--only", choices=names, action="append", help="a picture to make; may be repeated")
    parser.add_argument("--out", type=Path, default=HERE, help="the folder to write to, by default this one")
    parser.add_argument("--dark", action="store_true", help="write dark stills to --out")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs, scheme = kvviz.open_runs(live=False), "dark" if options.dark else "light"
    wanted = options.only or names
    for name in wanted:
        if name == MOVING:
            if not options.dark:
                save(options.out / f"{name}.gif", moving(at_work(runs, "clusterkv")))
        elif name in CHAPTERS:
            save(options.out / f"{name}.png", of_chapter(at_work(runs, name), CHAPTERS[name], scheme))
        elif name in WIDGETS:
            save(options.out / f"{name}.png", whole(WIDGETS[name](runs), scheme))
    with drawing_figures() if set(FIGURES) & set(wanted) else nullcontext():
        for name in FIGURES:
            if name in wanted:
                save_figure(options.out, name, runs, dark=options.dark)
    size = (HERE / f"{MOVING}.gif").stat().st_size
    if size > MOST_BYTES:
        print(f"{MOVING}.gif has {size:,} bytes, more than {MOST_BYTES:,}", file=sys.stderr)
    return int(size > MOST_BYTES)


def save(path: Path, picture: bytes) -> None:
    """Write a picture, and print its size."""
    path.write_bytes(picture)
    print(f"{path.name:24} {len(picture) / 1e3:6.0f} kB", flush=True)


@contextmanager
def drawing_figures() -> Iterator[None]:
    """One browser for all figures."""
    kaleido.start_sync_server(silence_warnings=True, **browser_page())
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)


def save_figure(folder: Path, name: str, runs: Any, *, dark: bool) -> None:
    """Write a figure of the primer as PNG, in 256 colours, or as a dark SVG."""
    figure = FIGURES[name](runs.trace(MANY_LAYERS if name == "primer_sinks" else "prose"))
    if dark:
        save_dark(figure, folder / f"{name}.svg", "page")
        return
    with tempfile.TemporaryDirectory() as temporary:
        drawn = plots.save(figure, Path(temporary) / "figure.png", width="page", dpi=FIGURE_DPI)
        few = Image.open(drawn).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    file = io.BytesIO()
    few.save(file, "PNG", optimize=True)
    save(folder / f"{name}.png", file.getvalue())


def at_work(runs: Any, method: str) -> widgets.MechanismStepper:
    """The method at work on a decode step of recorded prose, in one head."""
    return widgets.MechanismStepper(runs.trace("layers"), method, **PLACE, **FIELDS.get(method, {}))


def of_chapter(stepper: widgets.MechanismStepper, chapter: str, scheme: str) -> bytes:
    """PNG of what moves, in the last frame of a chapter; in the last frame but one if the scene has no such chapter.

    Of a frame without a picture, it shows the words.
    """
    frames = stepper.scene.frames
    numbers = [number for number, frame in enumerate(frames) if frame.chapter == chapter] or [max(len(frames) - 2, 0)]
    part = ".kv-picture" if frames[numbers[-1]].panels else ".kv-words"
    return _frames(stepper, numbers[-1:], scheme, part=part, **STILL_PAGE)[0]


def moving(stepper: widgets.MechanismStepper) -> bytes:
    """GIF of all frames of a scene, in as many colours as MOST_BYTES allow.

    GIF, because GitHub lets readers stop this kind of moving picture.
    """
    shots = _frames(stepper, range(len(stepper.scene.frames)), "light", **MOVING_PAGE)
    frames = [_smaller(Image.open(io.BytesIO(shot)).convert("RGB")) for shot in shots]
    together = Image.new("RGB", (frames[0].width, frames[0].height * len(frames)))
    for number, frame in enumerate(frames):
        together.paste(frame, (0, number * frame.height))
    for colours in COLOURS:
        # One for all frames, so that what stays is not stored again; of the rare hues too, not of the greys alone.
        palette = together.quantize(colours, Image.Quantize.MAXCOVERAGE)
        first, *rest = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
        file, shown = io.BytesIO(), [FRAME_MS] * len(rest) + [LAST_MS]
        first.save(file, "GIF", save_all=True, append_images=rest, duration=shown, loop=0, optimize=True)
        if len(file.getvalue()) <= MOST_BYTES:
            break
    return file.getvalue()


def _smaller(picture: Image.Image) -> Image.Image:
    height = round(picture.height * MOVING_WIDTH / picture.width)
    return picture.resize((MOVING_WIDTH, height), Image.Resampling.LANCZOS)


def _frames(stepper: widgets.MechanismStepper, numbers: Sequence[int], scheme: str, **page: object) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        stepper.to_html(path)
        return pictures.of_frames(path, numbers, scheme, **page)


def whole(widget: object, scheme: str) -> bytes:
    """PNG of a whole widget."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        widget.to_html(path)
        return pictures.of_page(path, scheme)


def decode_stepper(runs: Any) -> widgets.DecodeStepper:
    """A recorded answer at the step in which its number is written."""
    run = runs.recordings("needle")["clusterkv, 400 clusters"]
    step = run.question_length - 1 + 10  # the step of the question's last token writes the answer's first
    return widgets.DecodeStepper(run, layer=23, head=0, step=step, span=HIDDEN)


def cluster_inspector(runs: Any) -> widgets.ClusterInspector:
    """The keys of a head in clusters."""
    return widgets.ClusterInspector(runs.trace("prose"), layer=14, head=1, budget=256)


def budget_explorer(runs: Any) -> widgets.BudgetExplorer:
    """What PQCache keeps at one budget."""
    return widgets.BudgetExplorer(runs.trace("prose"), method="pqcache", budget=256, head=1)


def method_comparer(runs: Any) -> widgets.MethodComparer:
    """Four recorded methods, about to write the same number."""
    recordings = runs.recordings("needle")
    shown = {label: recordings[label] for label in COMPARED}
    return widgets.MethodComparer(shown, layer=23, head=0, step=9, span=HIDDEN)


WIDGETS: dict[str, Callable[[Any], object]] = {
    made.__name__: made for made in (decode_stepper, cluster_inspector, budget_explorer, method_comparer)
}

if __name__ == "__main__":
    sys.exit(main())
