"""Checks of the site's references: none to another host, none to a missing file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that a browser fetches by itself, by tag; <a> and <form> need a click.
FETCHED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "image": ("href", "xlink:href"), "link": ("href",),
}  # fmt: skip
NOT_FETCHED = {"next", "prev", "index", "search", "author", "copyright", "help", "top", "up", "canonical"}  # <link rel>
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


def troubles(site: Path) -> list[str]:
    """One line per reference to another host or a missing file, in the pages and style sheets under `site`."""
    problems = []
    for path in sorted(site.rglob("*.html")):
        page, name = _Page(path.read_text(encoding="utf-8")), path.relative_to(site)
        problems += [f"{name}: asks another host: {target}" for target in page.fetched if _remote(target)]
        local = sorted(target for target in {*page.fetched, *page.linked} if not _remote(target))
        problems += [
            f"{name}: refers to what is missing: {target}" for target in local if not _exists(target, path, site)
        ]
    for path in sorted(site.rglob("*.css")):
        targets = _in_style(path.read_text(encoding="utf-8"))
        problems += [f"{path.relative_to(site)}: asks another host: {target}" for target in targets if _remote(target)]
    return problems


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        self.fetched += _in_style(attributes.get("style", ""))
        if tag == "a" and "href" in attributes:
            self.linked.append(attributes["href"])
        if tag == "link" and set(attributes.get("rel", "").split()) <= NOT_FETCHED:
            self.linked.append(attributes.get("href", ""))
            return
        for name in FETCHED.get(tag, ()):
            parts = attributes.get(name, "").split(",") if name == "srcset" else [attributes.get(name, "")]
            self.fetched += [part.split()[0] if name == "srcset" else part for part in parts if part.strip()]

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.fetched += _in_style(data)


def _in_style(text: str) -> list[str]:
    return [first or second for first, second in IN_STYLE.findall(text)]


def _remote(target: str) -> bool:
    return target.startswith("//") or urlsplit(target).scheme in ("http", "https", "ftp", "ws", "wss")


def _exists(target: str, page: Path, site: Path) -> bool:
    parts = urlsplit(target)
    if parts.scheme or not parts.path:  # data:, mailto:, an anchor in the same page
        return True
    path = (page.parent / unquote(parts.path)).resolve()
    return path.is_relative_to(site.resolve()) and path.is_file()
