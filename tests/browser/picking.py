"""Picking in the widgets as a person does: a head on the map of layers × heads, and a choice in the Settings."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect


def cell(widget: Page | Locator, layer: int, heads: str) -> Locator:
    """The cell of the map for a layer and heads, such as "KV head 1" or "union of all KV heads"."""
    return widget.get_by_role("gridcell", name=re.compile(f"^layer {layer}, {re.escape(heads)}: "))


def pick_head(widget: Page | Locator, layer: int, heads: int | str) -> None:
    """Click the cell of a layer and KV head, or of other heads by their name."""
    cell(widget, layer, f"KV head {heads}" if isinstance(heads, int) else heads).click()


def expect_head(widget: Page | Locator, layer: int, heads: int | str) -> None:
    """Wait until the map says that a layer and KV head, or other heads by their name, are picked."""
    name = f"KV head {heads}" if isinstance(heads, int) else heads
    picked = widget.locator(".kv-headcell[data-picked]")
    expect(picked).to_have_attribute("aria-label", re.compile(f"^layer {layer}, {re.escape(name)}: "))


def settle(widget: Page | Locator, label: str, choice: str) -> None:
    """Choose an option of a select in the Settings, and close them."""
    menu = widget.locator("summary").get_by_text("Settings")
    menu.click()
    widget.get_by_label(label).select_option(choice)
    menu.click()
