"""The scenes that tests.browser.latency measures: each widget with data, and the controls to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from playwright.sync_api import Page

from kvviz.trace import Trace
from kvviz.widgets import (
    BudgetExplorer,
    ClusterInspector,
    Curve,
    DecodeStepper,
    MechanismStepper,
    MethodComparer,
    Prediction,
    Value,
    assets,
)
from kvviz.widgets.budget_explorer import LONGEST

from .recordings import prose_recording

READY = ".kvviz .kv-attended[data-position], .kvviz:is(.kv-alone, .kv-mechanism) canvas, .kv-question"
RECORDING = "from tests.browser.recordings import prose_recording\n"
LAYERS = (14, 2, 29)
LONG = 32768  # tokens, from which a change may take twice as long
COMPARED = ("clusterkv", "quest", "pqcache", "ctkvr")
# The methods that the explorer has sliders for, with those that it shows first.
SLIDERS = {
    "clusterkv": ("tokens per cluster", "sinks"), "quest": ("page size",), "pqcache": ("partitions m", "bits b"),
    "ctkvr": ("tokens per centroid", "list length ρ/ρ′"), "centroidkv": ("chunk size", "merge ratio"),
    "streaming_llm": ("sinks",),
}  # fmt: skip
# A host for CanvasMatrix that acts like anywidget, without a kernel: a key press puts another matrix into its model.
CANVAS_HOST = """async ([source, size]) => {
    const { default: widget } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    const noise = () => new DataView(Uint8Array.from({ length: size * size }, () => Math.random() * 256).buffer);
    const grey = new DataView(Uint8Array.from({ length: 1024 }, (_, at) => (at % 4 === 3 ? 255 : at >> 2)).buffer);
    const matrices = [noise(), noise()], heard = {};
    const values = { values: matrices[0], shape: [size, size], colours: grey, label: "noise", row: -1 };
    values._kvviz_view = "matrix";
    const model = {
        get: (name) => values[name], set: (name, value) => (values[name] = value), save_changes() {}, off() {},
        on: (event, react) => (heard[event] = react),
    };
    const host = document.querySelector("main");
    widget.render({ model, el: host });
    host.addEventListener("keydown", () => {
        model.set("values", matrices[Number(values.values === matrices[0])]);
        heard["change:values"]();
    });
}"""
# A key press goes to the kernel, which computes the next matrix and sends it back.
CANVAS_CELL = """
import ipywidgets, numpy as np
from kvviz.widgets import CanvasMatrix
noise = np.random.default_rng(0).integers(256, size=({size}, {size}), dtype=np.uint8)
grey = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 4, axis=1)
grey[:, 3] = 255
canvas = CanvasMatrix(noise, colours=grey)
slider = ipywidgets.IntSlider(description="shift", max=255)
slider.observe(lambda change: canvas.paint(noise + np.uint8(change.new)), "value")
ipywidgets.VBox([slider, canvas])
"""


@dataclass(frozen=True)
class Control:
    """A control: what it changes, its selector, and the largest number of uses."""

    change: str
    selector: str
    times: int = 30
    key: str | None = None  # pressed repeatedly; None: all other values are visited once


def _labelled(change: str, label: str) -> Control:
    return Control(change, f'.kvviz [aria-label="{label}"]')


STEP = _labelled("step", "decode step")
PICKED = ".kvviz .kv-headcell[data-picked]"  # on the map of layers × heads; the recordings have three heads
LAYER, HEAD = Control("layer", PICKED, 2, "ArrowRight"), Control("KV head", PICKED, 2, "ArrowDown")


@dataclass(frozen=True)
class Scene:
    """A widget with data, the limit in milliseconds for a change, and the controls to use.

    `open` shows it on a page without a kernel, and may write into a folder; `cell` shows it in JupyterLab.
    """

    widget: str
    size: str
    limit_ms: int
    open: Callable[[Page, Path], None]
    on_page: Sequence[Control]
    cell: str
    live: Sequence[Control]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the scenes; the explorer and the inspector show the trace in the file `trace`."""

    trace: Path
    tokens: int = 8192
    steps: int = 64
    budget: int = 512
    canvas: int = 2048


def _limit(milliseconds: int, tokens: int) -> int:
    return milliseconds if tokens < LONG else 2 * milliseconds


def stepper(sizes: Sizes) -> Iterator[Scene]:
    """The stepper over a long prompt."""
    shape = {"prompt_length": sizes.tokens, "steps": sizes.steps, "budget": sizes.budget, "layers": LAYERS}
    yield Scene(
        "stepper", f"{sizes.tokens:,} tokens", _limit(100, sizes.tokens),
        _file(lambda path: DecodeStepper(prose_recording(**shape)).to_html(path, layers=LAYERS)), (STEP, LAYER, HEAD),
        f"{RECORDING}from kvviz.widgets import DecodeStepper\nDecodeStepper(prose_recording(**{shape}))",
        (STEP, LAYER, HEAD),
    )  # fmt: skip


def comparer(sizes: Sizes) -> Iterator[Scene]:
    """The comparer with four methods on the same text."""
    shape = {"prompt_length": sizes.tokens, "steps": sizes.steps // 2, "budget": sizes.budget, "layers": LAYERS[:2]}
    sort = _labelled("sorting", "sort by")

    def write(path: Path) -> None:
        MethodComparer({name: prose_recording(seed=seed, **shape) for seed, name in enumerate(COMPARED)}).to_html(path)

    runs = (
        f"{{name: prose_recording(seed=seed, **{shape}).replace(method=name) for seed, name in enumerate({COMPARED})}}"
    )
    yield Scene(
        "comparer", f"{sizes.tokens:,} tokens, {len(COMPARED)} methods", _limit(100, sizes.tokens), _file(write),
        (STEP, sort),
        f"{RECORDING}from kvviz.widgets import MethodComparer\nMethodComparer({runs})",
        (STEP, sort, replace(LAYER, times=1), HEAD),
    )  # fmt: skip


def explorer(sizes: Sizes) -> Iterator[Scene]:
    """The explorer with each method that has sliders, every slider over all its values."""
    trace = Trace.load(sizes.trace)
    size = f"{len(trace):,} tokens" + (f", of which the first {LONGEST:,}" if len(trace) > LONGEST else "")
    for method, names in SLIDERS.items():
        controls = [_labelled(f"{method}, {name}", name) for name in ("budget", *names)]
        yield Scene(
            "explorer", size, _limit(300, len(trace)), _file(partial(_explorer_page, trace, method)), controls[:2],
            _of_trace("BudgetExplorer", sizes.trace, f"method={method!r}"), controls,
        )  # fmt: skip


def inspector(sizes: Sizes) -> Iterator[Scene]:
    """The inspector; its slider starts at ClusterKV's number of clusters."""
    trace = Trace.load(sizes.trace)
    label = "number of clusters C"
    yield Scene(
        "inspector", f"{len(trace):,} tokens", _limit(300, len(trace)), _file(ClusterInspector(trace).to_html),
        (_labelled("C", label),), _of_trace("ClusterInspector", sizes.trace),
        (_labelled("C", label), _labelled("metric", "metric"), _labelled("KV head", "KV head")),
    )  # fmt: skip


def mechanism(sizes: Sizes) -> Iterator[Scene]:
    """The mechanism stepper, whose frames need no kernel; things are at their new places at once."""
    trace = Trace.load(sizes.trace)
    for method in ("clusterkv", "pqcache"):
        frame = (_labelled(f"{method}, frame", "frame"),)
        yield Scene(
            "mechanism", f"{len(trace):,} tokens", _limit(50, len(trace)),
            _file(MechanismStepper(trace, method, budget=sizes.budget).to_html), frame,
            _of_trace("MechanismStepper", sizes.trace, repr(method), f"budget={sizes.budget}"), frame,
        )  # fmt: skip


def prediction(_: Sizes) -> Iterator[Scene]:
    """A prediction, whose answers need no kernel; its sizes are always the same."""
    value, curve = Value("How many?", 1, 0, 40), Curve("Which way?", range(24), [0.5] * 24)
    controls = (
        Control("value", ".kv-prediction input[type=range]"), Control("curve", ".kv-point >> nth=3", 20, "ArrowUp"),
    )  # fmt: skip
    yield Scene(
        "prediction", "2 questions", 50, _file(Prediction(value, curve).to_html), controls,
        "from kvviz.widgets import Curve, Prediction, Value\n"
        "Prediction(Value('How many?', 1, 0, 40), Curve('Which way?', range(24), [0.5] * 24))",
        controls,
    )  # fmt: skip


def canvas(sizes: Sizes) -> Iterator[Scene]:
    """A matrix of noise on a canvas, replaced by another one."""
    size = sizes.canvas
    another = partial(Control, "another matrix", key="ArrowRight")
    yield Scene(
        "canvas", f"{size:,} × {size:,}", 150, partial(_canvas_page, size), (another("main"),),
        CANVAS_CELL.format(size=size), (another(".noUi-handle"),),
    )  # fmt: skip


# Each function yields its scenes one by one, so that recordings are made only when needed.
WIDGETS: dict[str, Callable[[Sizes], Iterator[Scene]]] = {
    "stepper": stepper, "comparer": comparer, "explorer": explorer, "inspector": inspector, "mechanism": mechanism,
    "prediction": prediction, "canvas": canvas,
}  # fmt: skip


def _file(write: Callable[[Path], object]) -> Callable[[Page, Path], None]:
    """A function that opens the page that `write` writes to a file."""

    def open_file(page: Page, folder: Path) -> None:
        write(folder / "page.html")
        page.goto((folder / "page.html").as_uri())

    return open_file


def _of_trace(widget: str, trace: Path, *arguments: str) -> str:
    imports = f"from kvviz import Trace\nfrom kvviz.widgets import {widget}\n"
    return imports + f"{widget}({', '.join([f'Trace.load({str(trace)!r})', *arguments])})"


def _explorer_page(trace: Trace, method: str, path: Path) -> None:
    BudgetExplorer(trace, method=method).to_html(path)


def _canvas_page(size: int, page: Page, folder: Path) -> None:
    page.goto("about:blank")
    page.set_content(f"<style>{assets.STYLE.read_text()}</style><main tabindex=0></main>")
    page.evaluate(CANVAS_HOST, [assets.SCRIPT.read_text(), size])
