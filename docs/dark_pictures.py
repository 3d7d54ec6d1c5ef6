"""Dark pictures: the build draws one for each light picture of the repository, and the site shows the one that fits.

Figures are drawn from the same data, as SVG, with the rules that make live figures dark; widgets are pictured in a dark
browser. Both need Chromium or Chrome.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "dark"  # beside the light pictures
MADE_BY = {
    "data/gallery": "data/gallery/make.py", "data/papers/pictures": "data/papers/make.py",
    "data/pictures": "data/pictures/make.py",
}  # fmt: skip
IMAGE = re.compile(r'<img src="(?P<path>[^"]+)\.png" (?P<rest>[^>]*)>|!\[(?P<alt>[^\]]*)\]\((?P<file>[^)]+)\.png\)')


def draw(folder: str, extra: Path) -> None:
    """Draw the pictures of a folder of the repository into the site's files. Raises CalledProcessError if that fails."""
    out = extra / folder / FOLDER
    out.mkdir(parents=True)
    subprocess.run([sys.executable, ROOT / MADE_BY[folder], "--dark", "--out", out], check=True)


def both(text: str, folder: Path) -> str:
    """A page's Markdown with each picture that has a dark one as both, of which the theme shows one.

    `folder` holds the page's pictures, at the same paths.
    """

    def pair(match: re.Match[str]) -> str:
        path = match["path"] or match["file"]
        rest = match["rest"] or f'alt="{html.escape(match["alt"])}"'
        beside = Path(path).parent / FOLDER / Path(path).name
        dark = next((f"{beside}{end}" for end in (".svg", ".png") if (folder / f"{beside}{end}").exists()), None)
        if dark is None:
            return match[0]
        return f'<img class="only-light" src="{path}.png" {rest}><img class="only-dark" src="{dark}" {rest}>'

    return IMAGE.sub(pair, text)
