"""Slides of the notebooks: one per figure or widget, from the stored outputs, as one file that needs no network.

    python notebooks/slides.py                   all notebooks, into build/slides
    python notebooks/slides.py 04_clusterkv      this one

A slide has the title of its section, the first sentence of the text before the picture, and the picture. The arrow
keys, Page Up and Page Down, Home and End turn the slides; printing gives a page per slide. (nbconvert's slides would
fetch reveal.js from another host.)
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "build" / "slides"
SENTENCE = re.compile(r".+?[.?!:](?=\s|$)", re.DOTALL)
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>
@page {{ size: 320mm 180mm; margin: 0 }}
body {{ margin: 0; background: #fff; color: #1a1a1a; font-family: Inter, "Helvetica Neue", Arial, sans-serif }}
section {{ box-sizing: border-box; width: 100vw; height: 100vh; padding: 3vh 4vw; display: none }}
section {{ flex-direction: column }}
section.shown {{ display: flex }}
h1, h2 {{ margin: 0 0 1vh; font-size: clamp(20px, 4.4vh, 48px) }}
section.first {{ justify-content: center }}
p {{ margin: 0 0 2vh; font-size: clamp(15px, 2.8vh, 30px) }}
img {{ min-height: 0; flex: 1; object-fit: contain; object-position: left top; max-width: 100% }}
footer {{ color: #6e6e6e; font-size: 14px; margin-top: 1vh }}
@media print {{ section {{ display: flex; width: 320mm; height: 179mm; break-after: page }} }}
</style></head>
<body>
{slides}
<script>
const slides = [...document.querySelectorAll("section")];
let shown = Math.min(Math.max(Number(location.hash.slice(1)) || 1, 1), slides.length) - 1;
function show(number) {{
  shown = Math.min(Math.max(number, 0), slides.length - 1);
  slides.forEach((slide, at) => slide.classList.toggle("shown", at === shown));
  history.replaceState(null, "", `#${{shown + 1}}`);
}}
const turns = {{ ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 }};
addEventListener("keydown", (event) => {{
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in turns) show(shown + turns[event.key]);
  else if (event.key === "Home") show(0);
  else if (event.key === "End") show(slides.length - 1);
  else return;
  event.preventDefault();
}});
show(shown);
</script>
</body></html>
"""


@dataclass(frozen=True)
class Slide:
    """A picture (PNG, base64) with the title of its section and the sentence before it."""

    title: str
    sentence: str
    picture: str


def main() -> int:
    """Write what the command line asks for, and return the exit status."""
    parser = argparse.ArgumentParser(description="Write slides of notebooks, from their stored outputs.")
    parser.add_argument("notebooks", nargs="*", help="names, with or without .ipynb; default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder, by default build/slides")
    options = parser.parse_args()
    names = [name.removesuffix(".ipynb") for name in options.notebooks] or sorted(p.stem for p in HERE.glob("*.ipynb"))
    options.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = options.out / f"{name}.html"
        path.write_text(page(nbformat.read(HERE / f"{name}.ipynb", as_version=4)), encoding="utf-8")
        print(path)
    return 0


def slides(notebook: nbformat.NotebookNode) -> Iterator[Slide]:
    """A Slide for each stored picture."""
    title = sentence = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            *_, last = re.split(r"^(?=#)", cell.source, flags=re.MULTILINE)
            heading, _, body = last.partition("\n") if last.startswith("#") else ("", "", last)
            title = plain(heading.lstrip("# ")) or title
            sentence = first_sentence(body)
        for output in cell.get("outputs", ()):
            if picture := output.get("data", {}).get("image/png"):
                yield Slide(title, sentence, "".join(picture.split()))


def first_sentence(markdown: str) -> str:
    """The first sentence of running text, without a notebook's header line, lists and tables."""
    for paragraph in re.split(r"\n\s*\n", markdown.strip()):
        if not re.match(r"\*About |[-*|>] |\d+\. |```|\|", paragraph):
            text = plain(paragraph)
            found = SENTENCE.match(text)
            return found[0] if found else text
    return ""


def plain(markdown: str) -> str:
    """Markdown as plain text: without links' addresses, emphasis and line breaks."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown)
    return " ".join(re.sub(r"\*\*|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)|`", "", text).split())


def page(notebook: nbformat.NotebookNode) -> str:
    """The slides of a notebook as one HTML page; the first one has its title."""
    title = plain(notebook.cells[0].source.partition("\n")[0].lstrip("# "))
    shown = list(slides(notebook))
    parts = [f'<section class="first"><h1>{html.escape(title)}</h1><p>kvviz</p></section>']
    for number, slide in enumerate(shown, 2):
        parts.append(
            f"<section><h2>{html.escape(slide.title)}</h2><p>{html.escape(slide.sentence)}</p>"
            f'<img src="data:image/png;base64,{slide.picture}" alt="{html.escape(slide.title)}">'
            f"<footer>{html.escape(title)} · {number} of {len(shown) + 1}</footer></section>"
        )
    return PAGE.format(title=html.escape(title), slides="\n".join(parts))


if __name__ == "__main__":
    sys.exit(main())
