"""The page "Figures for your paper": each call on it is run, and each number is measured on the file that it wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pypdf

from kvviz import plots
from notebooks.runs import Runs

TEX_POINTS = 72.27  # per inch; PDF's own points are 72 per inch
PAPER = 'title=False, names="paper"'
# Width of the text and space between the columns in inches or TeX points, as the class or style file sets them.
STYLES = {
    "IEEEtran": ("two columns", "43pc", 516 / TEX_POINTS, "1pc", 12 / TEX_POINTS),
    "acmart, sigconf": ("two columns", "506.295pt", 506.295 / TEX_POINTS, "24pt", 24 / TEX_POINTS),
    "ACL": ("two columns", "16cm", 16 / 2.54, "0.6cm", 0.6 / 2.54),
    "ICML, MLSys": ("two columns", "6.75in", 6.75, "0.25in", 0.25),
    "USENIX": ("two columns", "7in", 7.0, "0.33in", 0.33),
    "NeurIPS, ICLR": ("one column", "5.5in", 5.5, "", 0.0),
}
INTRODUCTION = """# Figures for your paper

<!-- Written by data/gallery/make.py. -->

`plots.save` writes a figure at its final size with 8-point type, so that LaTeX scales neither lines nor letters. Every
call below was run by `make gallery` on `figure = kvviz.plots.recall_by_budget(runs.table("budgets"))`, where
`runs = kvviz.open_runs(live=False)`; the numbers were measured on the files that it wrote.
"""


WIDGETS = """
## A widget as a figure

"Save" in the head of a widget has "Save as SVG" and "Save as PDF": what the widget shows, without the menu, light or
dark as it is and as wide as on the screen. Text stays text, lines and marks are vectors, and maps are lossless
bitmaps at their own resolution. An SVG names its fonts, a generic one last, and gives each text the width that it
had, so that tints stay under their tokens with other fonts. For a PDF the browser's print dialog opens with one page
of the widget's size: choose "Save as PDF" there. It embeds its fonts. A narrower window makes larger type in print: a
widget 480 pixels wide has type of about 6 points in a column of 3.3 inches.
"""


class Measured(NamedTuple):
    """A PDF's size in inches, the sizes of its type in points, and whether all fonts are embedded."""

    width: float
    height: float
    type_sizes: set[float]
    embedded: bool
    texts: str


def measured(path: Path) -> Measured:
    """What a PDF of one page has."""
    (page,) = pypdf.PdfReader(path).pages
    sizes: set[float] = set()

    def note(text: str, matrix: list[float], text_matrix: list[float], font: object, size: float) -> None:
        points = round(abs(matrix[3] * text_matrix[3]) * size, 1)
        if text.strip() and points:  # pypdf also tells of texts before it has read their size
            sizes.add(points)

    texts = page.extract_text(visitor_text=note)
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    described = [font["/DescendantFonts"][0].get_object() if "/DescendantFonts" in font else font for font in fonts]
    files = [{"/FontFile", "/FontFile2", "/FontFile3"} & set(font["/FontDescriptor"]) for font in described]
    box = page.mediabox
    return Measured(float(box.width) / 72, float(box.height) / 72, sizes, all(files), texts)


def page(runs: Runs) -> str:
    """The text of the page. It writes files into a temporary folder, and needs the browser that kaleido drives."""
    figure = plots.recall_by_budget(runs.table("budgets"))
    with tempfile.TemporaryDirectory() as folder:

        def saved(arguments: str) -> Measured:
            path = Path(folder) / "recall.pdf"
            eval(f"save(figure, path, {arguments})", {"save": plots.save, "figure": figure, "path": path})
            return measured(path)

        parts = [INTRODUCTION, _choices(saved), _latex(), _styles(saved)]
    return "\n".join([*parts, WIDGETS.strip(), ""])


def _choices(saved: Callable[[str], Measured]) -> str:
    rows = ["| call | width × height | type | fonts embedded | first method |", "|---|---|---|---|---|"]
    for arguments in ('width="column"', f'width="column", {PAPER}', f'width="column", {PAPER}, font="serif"',
                      f'width="page", {PAPER}', f'width="column", height=2, {PAPER}'):  # fmt: skip
        file = saved(arguments)
        method = next(name for name in ("ClusterKV", "clusterkv") if name in file.texts)
        sizes = ", ".join(f"{size:g} pt" for size in sorted(file.type_sizes))
        embedded = "yes" if file.embedded else "no"
        size = f"{file.width:.2f} × {file.height:.2f} in"
        rows.append(f'| `plots.save(figure, "recall.pdf", {arguments})` | {size} | {sizes} | {embedded} | {method} |')
    return "\n".join([
        "## Choices\n", *rows, "",
        "A paper's caption says what a title says on a screen: `title=False` leaves it out. `names=\"paper\"` writes",
        "ClusterKV for `clusterkv`; `names={\"mine\": \"My Method\"}` names others too. `font=\"serif\"` goes with",
        "LaTeX's Times, and `font=\"Libertinus Serif\"` uses that font if the machine has it. The suffix `.svg` writes",
        "the same figure as SVG, for the web or for Inkscape; its text stays text, in the reader's fonts.",
        "",
    ])  # fmt: skip


def _latex() -> str:
    return """## In LaTeX

```latex
\\begin{figure}[t]
  \\centering
  \\includegraphics{recall.pdf}   % at its own size: the type is 8 points
  \\caption{Recall by budget, SmolLM2-135M-Instruct, 2,016 tokens.}
\\end{figure}
```

`\\includegraphics[width=\\columnwidth]{recall.pdf}` fits the figure into any column, and scales its type with it. A
figure over both columns is saved with `width="page"` and stands in `figure*`. `\\the\\columnwidth` in your document
prints the width of its column in TeX's points; `width=` takes inches, 72.27 points each.
"""


def _styles(saved: Callable[[str], Measured]) -> str:
    rows = ["| style | its text, its gap | column | call | file | of the column |", "|---|---|---|---|---|---|"]
    for name, (kind, text, text_inches, gap, gap_inches) in STYLES.items():
        column = (text_inches - gap_inches) / 2 if gap else text_inches
        arguments = f"width={column:.2f}, {PAPER}"
        file = saved(arguments)
        points = f"{column * TEX_POINTS:.1f} pt, {column:.2f} in"
        share = f"{file.width / column:.1%}"
        setting = f"{text}, {gap}" if gap else text
        rows.append(f"| {name} ({kind}) | {setting} | {points} | `{arguments}` | {file.width:.2f} in | {share} |")
    return "\n".join([
        "## Usual styles\n",
        "The width of a column follows from the width of the text and the gap between the columns that each class or",
        "style file sets. The file's width was measured.\n", *rows, "",
    ])  # fmt: skip
