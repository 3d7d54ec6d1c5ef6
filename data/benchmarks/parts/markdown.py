"""Markdown tables for the pages of results."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A Markdown table."""
    first, *others = (f"| {' | '.join(line)} |" for line in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])
