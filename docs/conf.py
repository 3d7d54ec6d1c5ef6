"""Configuration of Sphinx for the site; used by build.py."""

from __future__ import annotations

import os
import re
from typing import Any

import kvviz

project = "kvviz"
author = "the kvviz authors"
copyright = "the kvviz authors"
version = release = kvviz.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
exclude_patterns = ["README.md"]  # other pages include its parts
nb_execution_mode = "off"  # build.py has already run the notebooks
nb_merge_streams = True
myst_heading_anchors = 3
autosummary_generate = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

smartquotes = False  # quotes in docstrings belong to code

html_theme = "furo"
html_title = f"kvviz {version}"
html_static_path = ["static"]
html_extra_path = [os.environ["KVVIZ_SITE_EXTRA"]]
html_css_files = ["site.css", "frames.css"]
html_js_files = [("frames.js", {"defer": "defer"})]
html_show_sourcelink = html_copy_source = False
html_show_search_summary = False  # it fetches pages, which browsers do not allow for pages opened from disk
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b66c3", "color-brand-content": "#0b66c3"},
    "dark_css_variables": {"color-brand-primary": "#6cb2ff", "color-brand-content": "#6cb2ff"},
}


def restructured(text: str) -> str:
    """A docstring as reStructuredText: `code` stays code, and all other characters are literal."""
    blocks = re.split(r"(\n\s*\n)", text)
    return "".join(block if block.lstrip().startswith(">>>") else _paragraph(block) for block in blocks)


def _paragraph(text: str) -> str:
    prose = [re.sub(r"([*_|\\])", r"\\\1", part) for part in re.split(r"`+[^`]+`+", text)]
    code = [f"``{' '.join(part.split())}``" for part in re.findall(r"`+([^`]+)`+", text)]
    parts = [prose[0]]
    for literal, after in zip(code, prose[1:], strict=True):
        parts += [literal, "\\ " * after[:1].isalnum(), after]  # ends the code even if a letter follows
    return "".join(parts)


def _docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = restructured("\n".join(lines)).split("\n")


def setup(app: Any) -> None:
    """Connect the conversion of docstrings."""
    app.connect("autodoc-process-docstring", _docstring)
