"""Run notebooks from top to bottom and save their outputs.

    python notebooks/run.py 00_quickstart --html build/quickstart.html    a page that needs neither kernel nor network
    python notebooks/run.py 00_quickstart --inplace                       outputs saved in the notebook, with pictures
    python notebooks/run.py --recorded                                    all of them, without the model

A bar shows the progress. At the end the command prints the output of the cell tagged `result-table`, the time, the
kernel's peak memory, and how long the notebook takes to read and do (`reading.py`). If a cell raises, the run ends with
its traceback, and nothing is written. With --recorded, as on Binder, the command fails if a kernel needs more memory
than Binder gives it. Saved outputs hold no widget state.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
import plotly.io
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from tqdm import tqdm
from traitlets.config import Config

sys.path.insert(0, str(Path(__file__).resolve().parent))

import frames  # next to this file
from reading import EVENING, EVENING_MINUTES, Reading, primer, reading, with_header

HERE = Path(__file__).resolve().parent
CELL_TIMEOUT_S = 3600  # stops a cell that hangs; on a busy machine, a cell of 25 s can take over 600 s
OUTPUT_TIMEOUT_S = 300  # the wait for a cell's last output; nbclient's 4 s are too short for a busy machine
BINDER_GIB = 2.0  # mybinder.org restarts a container that uses more
SERVER_GIB = 0.25  # of it, used by JupyterLab's server; measured by tests/repository/test_binder.py
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PLOTLY_FIGURE = "application/vnd.plotly.v1+json"

# Runs in the kernel after the last cell: writes a page per widget that has to_html, and the peak memory in bytes.
AFTERWARDS = """
import pathlib, resource, sys
from ipywidgets.widgets.widget import _instances
for _key, _widget in list(_instances.items()):
    if type(_widget).__module__.startswith("kvviz.") and hasattr(_widget, "to_html"):
        _widget.to_html({folder!r} + "/" + _key + ".html")
_status = pathlib.Path("/proc/self/status")  # getrusage also counts the parent process's memory
_lines = _status.read_text().splitlines() if _status.exists() else []
_peak = [int(_line.split()[1]) * 1024 for _line in _lines if _line.startswith("VmHWM")]
_peak = _peak or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)]
pathlib.Path({folder!r}, "peak_bytes").write_text(str(_peak[0]))
"""

# nbconvert's page without the scripts that it would fetch from other hosts, with the first widget at the top and the
# code folded. The page is light in every system, as its figures are, and tells the frames so.
PAGE = """{%- extends 'lab/index.html.j2' -%}
{%- block extra_css -%}
<style>
:root { color-scheme: light; }
.kvviz-front { padding: 0 var(--jp-notebook-padding, 10px); }
.jp-InputArea > details { flex: 1 1 auto; min-width: 0; }
.jp-InputArea > details > summary, .kvviz-answer > summary {
  cursor: pointer; color: var(--jp-content-font-color2); font: 13px/28px var(--jp-content-font-family);
}
{{ nb.metadata.kvviz["frames.css"] }}
</style>
{%- endblock -%}
{%- block body_header -%}
{{ super() | replace("<body", '<body data-theme="light"') }}
<div class="jp-RenderedHTMLCommon kvviz-front">
<h1>{{ nb.metadata.title | escape }}</h1>
{{ nb.metadata.kvviz.front }}
</div>
{%- endblock -%}
{%- block body_footer -%}
<script type="module">{{ nb.metadata.kvviz["frames.js"] }}</script>
{{ super() }}
{%- endblock -%}
{%- block input -%}<details><summary>Code</summary>{{ super() }}</details>{%- endblock -%}
{%- block output_group -%}
{%- if "answer" in cell.metadata.get("tags", []) and cell.outputs -%}
<details class="kvviz-answer"><summary>Show the measurement</summary>{{ super() }}</details>
{%- else -%}{{ super() }}{%- endif -%}
{%- endblock -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
"""


def main() -> int:
    """Run the notebooks named on the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Run notebooks from top to bottom and save their outputs.")
    parser.add_argument("notebooks", nargs="*", help="names, with or without .ipynb; default: all")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the executed notebook as one HTML page")
    parser.add_argument("--inplace", action="store_true", help="save the outputs in the notebooks themselves")
    parser.add_argument("--recorded", action="store_true", help="from the recorded runs in data/, without the model")
    parser.add_argument("--limit", type=float, default=BINDER_GIB, metavar="GIB", help="Binder's (%(default)s GiB)")
    options = parser.parse_args()
    names = [name.removesuffix(".ipynb") for name in options.notebooks] or sorted(p.stem for p in HERE.glob("*.ipynb"))
    if options.html and len(names) > 1:
        parser.error("--html takes one notebook")
    lines, peaks, readings = [], {}, {}
    for name in names:
        try:
            line, peaks[name], readings[name] = run(HERE / f"{name}.ipynb", options)
            lines.append(f"{line}; {readings[name]}")
        except CellExecutionError as error:
            print(error, file=sys.stderr)
            return 1
    print("\n" + "\n".join(lines))
    if set(EVENING) <= set(readings):
        minutes = primer().minutes + sum(readings[name].minutes for name in EVENING)
        path = f"the primer, {', '.join(EVENING)}"
        print(f"The path of an evening, {path}: {minutes:.0f} of at most {EVENING_MINUTES} minutes.")
    if options.html:
        print(f"The page: {options.html.resolve()}")
    return fits_binder(peaks, options.limit) if options.recorded else 0


def fits_binder(peaks: dict[str, int], limit_gib: float) -> int:
    """Compare the largest kernel's peak memory with Binder's limit and print both; returns 1 if it is above."""
    name, peak_gib = max(((name, peak / 2**30) for name, peak in peaks.items()), key=lambda pair: pair[1])
    usage = f"{peak_gib:.2f} GiB + {SERVER_GIB} GiB for JupyterLab's server"
    fits = peak_gib + SERVER_GIB <= limit_gib
    print(f"Largest: {Path(name).name}, {usage}: {'within' if fits else 'MORE THAN'} Binder's {limit_gib:g} GiB.")
    return 0 if fits else 1


def run(path: Path, options: argparse.Namespace) -> tuple[str, int, Reading]:
    """Run one notebook, write the requested files, print its result table; a summary line, peak bytes and Reading."""
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        peak_bytes = execute(notebook, folder, recorded=options.recorded)
        timed = reading(notebook)
        if options.html:
            write(options.html, page(notebook, path.stem, Path(folder)))
        if options.inplace:
            with_header(notebook, path.stem, sorted(other.stem for other in HERE.glob("*.ipynb")))
            add_pictures(notebook, Path(folder))
            write(path, nbformat.writes(notebook) + "\n")
    print(result_table(notebook))
    seconds = time.perf_counter() - started
    return f"{path.name}: {seconds:.0f} s, kernel's peak memory {peak_bytes / 2**30:.2f} GiB", peak_bytes, timed


def execute(notebook: nbformat.NotebookNode, folder: str, *, recorded: bool = False) -> int:
    """Run all cells of the notebook and write one page per widget to `folder`; returns the kernel's peak bytes."""
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        iopub_timeout=OUTPUT_TIMEOUT_S,
        raise_on_iopub_timeout=True,  # else the outputs that came later would be missing
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": HERE}},
        config=sockets_in(folder),
        extra_arguments=["--log-level=ERROR"],  # the kernel warns that local connections are not encrypted
    )
    with client.setup_kernel(env=os.environ | {"KVVIZ_OFFLINE": "1"} if recorded else dict(os.environ)):
        for index, cell in enumerate(tqdm(notebook.cells, desc="cells", unit="cell")):
            client.execute_cell(cell, index)
        notebook.cells.append(nbformat.v4.new_code_cell(AFTERWARDS.format(folder=folder)))
        client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1, store_history=False)
    notebook.cells.pop()
    for cell in notebook.cells:
        if "outputs" in cell:
            cell.outputs = [output for output in without_snapshots(cell.outputs, folder) if not is_progress_bar(output)]
    return int(Path(folder, "peak_bytes").read_text())


def sockets_in(folder: str) -> Config:
    """Settings with which a kernel listens on files in `folder`.

    A port that Jupyter chose for a kernel can be taken by another process before the kernel opens it.
    """
    if sys.platform == "win32":  # ZeroMQ has no such sockets there
        return Config()
    return Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})


def measure(name: str, *, recorded: bool = False) -> dict[str, float]:
    """Seconds and the kernel's peak GiB of a run whose outputs are discarded."""
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        peak_bytes = execute(notebook, folder, recorded=recorded)
    return {"seconds": time.perf_counter() - started, "peak_gib": peak_bytes / 2**30}


def is_progress_bar(output: nbformat.NotebookNode) -> bool:
    """Whether an output is a tqdm bar, which a saved notebook would show empty."""
    data = output.get("data", {})
    return WIDGET_VIEW in data and re.match(r".*\d+%\|", data.get("text/plain", "")) is not None


def is_style_sheet(output: nbformat.NotebookNode) -> bool:
    """Whether an output only has the rules by which a figure follows the page's theme, which a picture cannot."""
    data = output.get("data", {})
    return set(data) == {"text/html"} and data["text/html"].startswith("<style>")


def without_snapshots(outputs: list[nbformat.NotebookNode], folder: str) -> list[nbformat.NotebookNode]:
    """The outputs without the snapshots of widgets that have a page in `folder`, which shows more."""
    kept, page_before = [], False
    for output in outputs:
        data = output.get("data", {})
        if not (page_before and "data-kvviz-snapshot=" in data.get("text/html", "")):
            kept.append(output)
        page_before = WIDGET_VIEW in data and Path(folder, f"{data[WIDGET_VIEW]['model_id']}.html").exists()
    return kept


def add_pictures(notebook: nbformat.NotebookNode, folder: Path) -> None:
    """Replace figures by PNGs, and add PNGs to widgets."""
    import pictures  # next to this file; needs a browser, so only with --inplace

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    views = {index: output.data.get(WIDGET_VIEW) for index, output in enumerate(outputs)}
    pages = {index: folder / f"{view['model_id']}.html" for index, view in views.items() if view}
    pictures.add(outputs, PLOTLY_FIGURE, {index: path for index, path in pages.items() if path.exists()})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_style_sheet(output)]


def page(notebook: nbformat.NotebookNode, title: str, folder: Path) -> str:
    """One self-contained HTML page: kvviz's widgets work, figures zoom, other widgets show their picture."""
    notebook = without_kernel(
        notebook, folder, lambda path: frames.frame(path.read_text(encoding="utf-8")), plotly_script=True
    )
    notebook.metadata.title = take_title(notebook) or title
    notebook.metadata.kvviz = frames.outer_parts() | {"front": take_first_frame(notebook)}
    body, _ = HTMLExporter(raw_template=PAGE).from_notebook_node(notebook)
    return str(body)


def without_kernel(
    notebook: nbformat.NotebookNode, folder: Path, framed: Callable[[Path], str], plotly_script: bool | str
) -> nbformat.NotebookNode:
    """A copy of the notebook with HTML outputs: kvviz's widgets as `framed` returns them, and plotly's figures.

    `folder` holds the widgets' pages. `plotly_script` says how the first figure includes plotly's 5 MB of JavaScript
    (see plotly.io.to_html); the other figures use the same script.
    """
    notebook = nbformat.from_dict(json.loads(json.dumps(notebook)))
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output):
        view = output.data.pop(WIDGET_VIEW, None)
        path = folder / f"{view['model_id']}.html" if view else None
        if path and path.exists():
            output.data["text/html"] = framed(path)
        figure = output.data.pop(PLOTLY_FIGURE, None)
        if figure:
            options = {"include_plotlyjs": plotly_script, "full_html": False, "validate": False}
            output.data["text/html"] = plotly.io.to_html(figure, config=figure.pop("config", None), **options)
            plotly_script = False
    return notebook


def take_title(notebook: nbformat.NotebookNode) -> str:
    """Remove the heading with which the notebook begins, and return it; "" if there is none."""
    heading, _, rest = notebook.cells[0].source.partition("\n")
    if notebook.cells[0].cell_type != "markdown" or not heading.startswith("# "):
        return ""
    notebook.cells[0].source = rest.lstrip("\n")
    return str(heading.removeprefix("# ").strip())


def take_first_frame(notebook: nbformat.NotebookNode) -> str:
    """Replace the first widget's frame by a link to the top of the page, and return it; "" if there is none."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output):
        found = output.data.get("text/html", "")
        if found.startswith('<iframe class="kvviz-frame"'):
            output.data["text/html"] = '<p><a href="#">This widget is at the top of the page.</a></p>'
            return str(found)
    return ""


def result_table(notebook: nbformat.NotebookNode) -> str:
    """The text of the cell tagged `result-table`."""
    cells = [cell for cell in notebook.cells if "result-table" in cell.metadata.get("tags", ())]
    outputs = [output.data for cell in cells for output in cell.outputs if "data" in output]
    return "\n".join(data["text/plain"] for data in outputs if "text/plain" in data)


def write(path: Path, text: str) -> None:
    """Write a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
