"""Build the site: notebooks run from recorded data with live widgets, methods, figures, reference.

    python docs/build.py                                      everything, into build/site
    python docs/build.py --notebooks 00_quickstart            run only this notebook; show the others without outputs
    python docs/build.py --light                              without Chromium: pictures are white in the dark theme too

The pages are those in this folder, the repository's Markdown, and those that `pages.py` writes from the registry and
the docstrings. Nothing is fetched from other hosts, neither by the build nor by the site. The build fails on a warning
of Sphinx, a reference to another host or a missing file, and a notebook that takes more memory than Binder has; the old
site is then kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
from nbclient.exceptions import CellExecutionError
from plotly.offline import get_plotlyjs
from sphinx.cmd.build import build_main

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT / "notebooks")]

import dark_pictures  # noqa: E402  # not in a package: found by the line above
import frames  # noqa: E402  # likewise
import pages  # noqa: E402  # likewise
import references  # noqa: E402  # likewise
import run as notebooks  # noqa: E402  # likewise

NAMES = tuple(sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")))
# Documents of the repository that become pages, at the same paths, so that links between them stay valid.
DOCUMENTS = (
    "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "data/README.md", "data/gallery/README.md",
    "data/gallery/print.md",
    "data/benchmarks/README.md", "data/benchmarks/methods.md", "data/agreement/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "data" / "papers").glob("*.md")),
)  # fmt: skip
BESIDE = ("LICENSE", *(str(path.relative_to(ROOT)) for path in (ROOT / "data").glob("pictures/*.png")))
# Pages below others, which are not named in these because GitHub would show the names as code.
BELOW = {
    "notebooks.md": ("notebooks/*",),
    "methods.md": ("methods/*",),
    "measured.md": ("data/benchmarks/README", "data/benchmarks/methods", "data/agreement/README", "data/README"),
}
# <img> in Markdown is not changed, so these files must be where it points.
COPIED_AS_THEY_ARE = ("data/gallery/*.png", "data/papers/pictures/*.png", "data/pictures/*.png")
PLOTLY = "plotly.min.js"
AT_ONCE = 2  # notebooks; the kernel of each takes up to 1 GiB


def main() -> int:
    """Build the site as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(description="Build the site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="build/site by default")
    parser.add_argument("--notebooks", nargs="*", choices=NAMES, default=NAMES, metavar="NAME", help="run only these")
    parser.add_argument("--light", action="store_true", help="draw no dark pictures, which need Chromium or Chrome")
    options = parser.parse_args()
    out = options.out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as folder:
        source, extra, html = (Path(folder) / name for name in ("source", "extra", "html"))
        try:
            peaks = prepare(source, extra, options.notebooks, dark=not options.light)
        except (CellExecutionError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
        if peaks and notebooks.fits_binder(peaks, notebooks.BINDER_GIB):
            return 1
        os.environ["KVVIZ_SITE_EXTRA"] = str(extra)  # conf.py reads it
        doctrees = Path(folder) / "doctrees"
        if build_main(["-Wq", "--keep-going", "-b=html", f"-c={DOCS}", f"-d={doctrees}", str(source), str(html)]):
            return 1
        if troubles := references.troubles(html):
            print("\n".join(troubles), file=sys.stderr)
            return 1
        shutil.rmtree(out, ignore_errors=True)
        html.rename(out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"The site: {out / 'index.html'} ({size / 1e6:.0f} MB)")
    return 0


def prepare(source: Path, extra: Path, to_run: Sequence[str], *, dark: bool) -> dict[str, int]:
    """Write Sphinx's input into `source`, and files that are copied to the site unchanged into `extra`.

    With `dark`, pictures have a dark one beside them. Returns the peak bytes of the kernel of each notebook that ran.
    """
    for name in (*DOCUMENTS, *BESIDE):
        copy(ROOT / name, source / name)
    for path in DOCS.glob("*.md"):
        copy(path, source / path.name)
        if path.name in BELOW:
            with (source / path.name).open("a", encoding="utf-8") as page:
                page.write("\n".join(["\n```{toctree}", ":hidden:", ":glob:", "", *BELOW[path.name], "```\n"]))
    for path in source.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        in_docs = path.parent == source and (DOCS / path.name).exists()
        path.write_text(linked(text, path.relative_to(source), in_docs=in_docs), encoding="utf-8")
    for pattern in COPIED_AS_THEY_ARE:
        for path in ROOT.glob(pattern):
            copy(path, extra / path.relative_to(ROOT))
    readme = source / "README.md"
    readme.write_text("".join(line for line in readme.open(encoding="utf-8") if not line.startswith("[![")))  # badges
    pages.write(source)
    (source / "notebooks").mkdir()
    (extra / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")
    (extra / "widgets").mkdir()
    pages.front(extra / "widgets")
    with ProcessPoolExecutor(AT_ONCE) as pool:
        drawings = [pool.submit(dark_pictures.draw, folder, extra) for folder in dark_pictures.MADE_BY if dark]
        runs = dict(zip(to_run, pool.map(partial(live, widgets=extra / "widgets"), to_run), strict=True))
        for drawing in drawings:
            drawing.result()
    for path in source.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(dark_pictures.both(text, extra / path.parent.relative_to(source)), encoding="utf-8")
    for name in NAMES:
        notebook = runs[name][0] if name in runs else unrun(read(name))
        nbformat.write(notebook, source / "notebooks" / f"{name}.ipynb")
    return {name: peak_bytes for name, (_, peak_bytes) in runs.items()}


def read(name: str) -> nbformat.NotebookNode:
    """The notebook as a page of the site: without the cell for Colab, and with links to other pages."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    notebook.cells = [cell for cell in notebook.cells if "colab" not in cell.metadata.get("tags", ())]
    for cell in notebook.cells:
        cell.source = linked(cell.source, Path("notebooks", name))
        fold(cell)
    return notebook


def fold(cell: nbformat.NotebookNode) -> None:
    """Let MyST-NB fold the code of a cell tagged `set-up`, and the outputs of one tagged `answer`."""
    tags = cell.metadata.get("tags", [])
    for tag, (folded, prompt) in frames.FOLDED.items():
        if tag in tags:
            cell.metadata["tags"] = [*cell.metadata["tags"], folded]
            cell.metadata["mystnb"] = {"code_prompt_show": prompt, "code_prompt_hide": prompt.replace("Show", "Hide")}


def linked(text: str, path: Path, *, in_docs: bool = False) -> str:
    """A page's Markdown with links that hold in the site, where docs/ is at the root and index.md shows README.md.

    `path` is the page's path in the site; `in_docs` says that in the repository it is in docs/.
    """
    root = "../" * (len(path.parts) - 1)
    if in_docs:
        text = text.replace("](../", "](").replace('src="../', 'src="')
    return text.replace(f"]({root}docs/", f"]({root}").replace(f"]({root}README.md)", f"]({root}index.md)")


def live(name: str, widgets: Path) -> tuple[nbformat.NotebookNode, int]:
    """The notebook run from the recorded data, with each widget in a frame, and its kernel's peak bytes.

    The frames' pages go into `widgets`.
    """
    notebook = read(name)

    def framed(page: Path) -> str:
        target = widgets / f"{name}-{len(list(widgets.glob(f'{name}-*'))) + 1}.html"
        text = page.read_text(encoding="utf-8")
        target.write_text(frames.framed(text), encoding="utf-8")
        return frames.frame(text, f"../widgets/{target.name}")

    with tempfile.TemporaryDirectory() as folder:
        try:
            peak_bytes = notebooks.execute(notebook, folder, recorded=True)
        except Exception:
            print(f"{name} failed:", file=sys.stderr)
            raise
        return notebooks.without_kernel(notebook, Path(folder), framed, f"../{PLOTLY}"), peak_bytes


def unrun(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without outputs."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def copy(path: Path, to: Path) -> None:
    """Copy a file, and create the missing folders."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)


if __name__ == "__main__":
    sys.exit(main())
