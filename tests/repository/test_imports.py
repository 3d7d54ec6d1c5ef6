"""Heavy packages load only when needed. import-linter checks which room may import which (pyproject.toml)."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*(name for name, module in sys.modules.items() if module))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(process.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import kvviz", {"numpy", "torch", "transformers", "plotly", "ipywidgets"}),
        ("import kvviz.plots", {"torch", "transformers", "ipywidgets"}),
        ("from kvviz import Trace, Recording, metrics", {"torch", "transformers", "plotly", "ipywidgets"}),
        ("import kvviz.widgets", {"torch", "transformers"}),
    ],
)
def test_imports_do_not_load_heavy_packages(statement: str, absent: set[str]) -> None:
    assert not loaded_by(statement) & absent


def test_the_core_works_without_plotting_packages() -> None:
    blocked = "sys.modules.update(dict.fromkeys(['plotly', 'ipywidgets', 'anywidget', 'IPython']))"
    uses = "import kvviz\nkvviz.methods.names(), kvviz.generate, kvviz.SelectiveCache, kvviz.capture, kvviz.replay"
    assert "kvviz.cache.selective_cache" in loaded_by(f"{blocked}\n{uses}")
