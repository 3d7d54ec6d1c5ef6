"""Imports point one way, and nothing heavy loads before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A room of kvviz may import those before it, and no others: what computes, from the errors up to whole runs.
COMPUTES = (
    "errors", "metrics", "trace", "kernels", "offload", "clustering", "methods", "cache", "models", "tasks",
    "generation", "evaluation",
)  # fmt: skip
# What draws sees stored data only.
DRAWS = {
    "plots": {"errors", "metrics", "trace"},
    # `generation.explore` computes for the widgets whose sliders change what is computed; a moved slider imports it.
    "widgets": {"errors", "metrics", "trace", "plots", "generation"},
}
NEVER = {
    "metrics": {"torch", "transformers", "pandas", "sklearn", "plotly"},
    "trace": {"torch", "transformers", "plotly"},
    "plots": {"torch", "transformers", "ipywidgets", "anywidget"},
    "widgets": {"torch", "transformers"},
}
MODULES = sorted({path.relative_to(ROOT / "kvviz").parts[0].removesuffix(".py") for path in ROOT.glob("kvviz/**/*.py")})


def imported(path: Path, top: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, at its head or inside a function; names of kvviz in full."""
    package = path.relative_to(top).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *(node.module.split(".") if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_of(module: str) -> set[str]:
    path = ROOT / "kvviz" / module
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return {name for file in files for name in imported(file, ROOT)}


@pytest.mark.parametrize("module", [module for module in MODULES if module != "__init__"])
def test_imports_point_one_way(module: str) -> None:
    assert module in (*COMPUTES, *DRAWS), "a new module: give it its place in COMPUTES or DRAWS"
    allowed = DRAWS[module] if module in DRAWS else set(COMPUTES[: COMPUTES.index(module)])
    names = imports_of(module)
    inside = {name.split(".")[1] for name in names if name.startswith("kvviz.")}
    assert inside - {module, "__version__"} <= allowed
    assert not {name.partition(".")[0] for name in names} & NEVER.get(module, set())


def test_kernels_never_import_kvviz() -> None:
    files = list((ROOT / "kernels" / "kvviz_kernels").rglob("*.py"))
    names = {name for file in files for name in imported(file, ROOT / "kernels")}
    assert "torch" in names
    assert not {name for name in names if name.split(".")[0] == "kvviz"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*(name for name, module in sys.modules.items() if module))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import kvviz", {"numpy", "torch", "transformers", "plotly", "ipywidgets"}),
        ("import kvviz.plots", {"torch", "transformers", "ipywidgets"}),
        ("from kvviz import Trace, Recording, metrics", {"torch", "transformers", "plotly", "ipywidgets"}),
        ("import kvviz.widgets", {"torch", "transformers"}),
    ],
)
def test_what_a_statement_does_not_load(statement: str, absent: set[str]) -> None:
    assert not loaded_by(statement) & absent


def test_the_core_needs_nothing_that_draws() -> None:
    blocked = "sys.modules.update(dict.fromkeys(['plotly', 'ipywidgets', 'anywidget', 'IPython']))"
    uses = "import kvviz\nkvviz.methods.names(), kvviz.generate, kvviz.SelectiveCache, kvviz.capture, kvviz.replay"
    assert "kvviz.cache.selective_cache" in loaded_by(f"{blocked}\n{uses}")
