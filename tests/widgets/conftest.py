"""Pages of all widgets, which tests of several modules open."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def widget_pages(tmp_path_factory):
    """The path of a page of each widget of test_layout_browser.py, by name. Tests only read them."""
    from tests.widgets.test_layout_browser import widgets

    folder = tmp_path_factory.mktemp("widgets")
    made = widgets()
    for name, widget in made.items():
        widget.to_html(folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}
