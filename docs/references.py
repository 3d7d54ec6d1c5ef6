"""What the site's pages refer to: nothing that another host has, nothing that is missing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself, by tag; <a> and <form> are for people.
FETCHED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"), "video": ("src",),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "image": ("href", "xlink:href"), "link": ("href",),
}  # fmt: skip
NOT_FETCHED = {"next", "prev", "index", "search", "author", "copyright", "help", "top", "up", "canonical"}  # <link rel>
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


def troubles(site: Path) -> list[str]:
    """A line for each reference of a page or style sheet under `site` to another host, or to no file."""
    found = []
    for path in sorted(site.rglob("*.html")):
        page, name = _Page(path.read_text(encoding="utf-8")), path.relative_to(site)
        found += [f"{name}: asks another host: {target}" for target in page.fetched if _remote(target)]
        own = sorted(target for target in {*page.fetched, *page.linked} if not _remote(target))
        found += [f"{name}: refers to what is missing: {target}" for target in own if not _there(target, path, site)]
    for path in sorted(site.rglob("*.css")):
        targets = _in_style(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(site)}: asks another host: {target}" for target in targets if _remote(target)]
    return found


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []
        self.in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {name: value or "" for name, value in attrs}
        self.in_style = tag == "style"
        self.fetched += _in_style(own.get("style", ""))
        if tag == "a" and "href" in own:
            self.linked.append(own["href"])
        if tag == "link" and set(own.get("rel", "").split()) <= NOT_FETCHED:
            self.linked.append(own.get("href", ""))
            return
        for name in FETCHED.get(tag, ()):
            parts = own.get(name, "").split(",") if name == "srcset" else [own.get(name, "")]
            self.fetched += [part.split()[0] if name == "srcset" else part for part in parts if part.strip()]

    def handle_data(self, data: str) -> None:
        if self.in_style:
            self.fetched += _in_style(data)


def _in_style(text: str) -> list[str]:
    return [first or second for first, second in IN_STYLE.findall(text)]


def _remote(target: str) -> bool:
    return target.startswith("//") or urlsplit(target).scheme in ("http", "https", "ftp", "ws", "wss")


def _there(target: str, page: Path, site: Path) -> bool:
    parts = urlsplit(target)
    if parts.scheme or not parts.path:  # data:, mailto:, a place in the page itself
        return True
    path = (page.parent / unquote(parts.path)).resolve()
    return path.is_relative_to(site.resolve()) and path.is_file()
