"""Generated pages: one per method, from the registry, and one per module, from the docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import kvviz
from kvviz.methods import Method

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "notebooks"))

import frames  # noqa: E402  # not in a package: found by the line above

RECORDED = DOCS.parent / "data" / "recordings" / "needle-clusterkv-400-clusters.safetensors"
TRACE = DOCS.parent / "data" / "traces" / "layers.safetensors"
HIDDEN = "The special magic number is 7463"
FIRST_DIGIT = "7"  # of the number that was asked for, 7463
MEASURED = DOCS.parent / "data" / "benchmarks" / "methods.md"
PAPERS = {"arXiv": "https://arxiv.org/abs/{}", "OpenReview": "https://openreview.net/forum?id={}"}
# Public modules, in addition to the names of kvviz itself.
MODULES = (
    "methods", "methods.selection", "methods.checks", "clustering", "metrics", "plots", "widgets", "generation",
    "generation.explore", "cache", "cache.kvpress", "offload", "kernels", "tasks", "evaluation", "trace", "models",
    "errors",
)  # fmt: skip


def write(source: Path) -> None:
    """Write a page for each method and each module into `source`, and link the methods in the table of methods.md."""
    names = kvviz.methods.names()
    for name in names:
        _write(source / "methods" / f"{name}.md", method(kvviz.methods.get(name)))
    overview = source / "methods.md"
    text = overview.read_text(encoding="utf-8")
    for name in names:
        text = text.replace(f"\n| `{name}` | ", f"\n| [`{name}`](methods/{name}.md) | ", 1)
    _write(overview, text)
    _write(source / "reference" / "kvviz.rst", module("kvviz", package_names()))
    for name in MODULES:
        _write(source / "reference" / f"kvviz.{name}.rst", module(f"kvviz.{name}", module_names(name)))


def method(cls: type[Method]) -> str:
    """A method's page: its docstring, fields and presets, expected failures, and measurements."""
    return "\n\n".join(part for part in (
        f"# {cls.title}",
        f"`{cls.name}` · {cls.kind} · {paper(cls.paper)}",
        inspect.getdoc(cls) or "",
        f'```python\nout = kvviz.generate(lm, prompt, method="{cls.name}", budget=1024)\n```',
        f"## Fields\n\n{fields(cls)}",
        *_failures(cls),
        *_measured(cls.name),
    ) if part) + "\n"  # fmt: skip


def paper(name: str) -> str:
    """The paper's id as a Markdown link; unchanged if its archive is unknown."""
    archive, _, number = name.partition(" ")
    return f"[{name}]({PAPERS[archive].format(number)})" if archive in PAPERS else name


def fields(cls: type[Method]) -> str:
    """A Markdown table of the fields: type, default, and the value in each preset."""
    head = ["field", "type", "default", *(f'"{name}"' for name in cls.presets)]
    rows = [head, ["---"] * len(head)]
    for field in dataclasses.fields(cls):
        presets = [_code(repr(values[field.name])) if field.name in values else "" for values in cls.presets.values()]
        rows.append([_code(field.name), _code(str(field.type)), _code(repr(field.default)), *presets])
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{lines}\n\nThe columns in quotes are presets. In an empty cell, the preset keeps the default."


def _failures(cls: type[Method]) -> Iterable[str]:
    if cls.expected_failures:
        yield "## Common checks that cannot hold"
        yield "\n".join(f"- `{check}`: {reason}" for check, reason in cls.expected_failures.items())


def _measured(name: str) -> Iterable[str]:
    """The rows of this method in the tables of all methods, with each table's title and introduction."""
    heading, *sections = MEASURED.read_text(encoding="utf-8").split("\n## ")
    parts = [part for section in sections if (part := _rows_of(name, section))]
    if parts:
        yield "## Measured"
        yield heading.partition("\n")[2].strip()
        yield "The columns are explained in [all methods, measured](../data/benchmarks/methods.md)."
        yield from parts


def _rows_of(name: str, section: str) -> str:
    title, *blocks = section.split("\n\n")
    for before, block in itertools.pairwise(blocks):
        lines = block.strip().split("\n")
        rows = [line for line in lines if re.match(rf"\| `{name}[`,]", line)]
        if rows:
            return "\n\n".join([f"### {title.strip()}", before.strip(), "\n".join([*lines[:2], *rows])])
    return ""


def package_names() -> list[str]:
    """The names that kvviz itself exports, without its modules."""
    return [name for name in kvviz.__all__ if name != "__version__" and not inspect.ismodule(getattr(kvviz, name))]


def module_names(name: str) -> list[str]:
    """The public names of a module: its __all__, or else what it defines."""
    imported = importlib.import_module(f"kvviz.{name}")
    if hasattr(imported, "__all__"):
        return list(imported.__all__)
    public = {name: value for name, value in vars(imported).items() if not name.startswith("_")}
    return [name for name, value in public.items() if getattr(value, "__module__", None) == imported.__name__]


def module(name: str, names: Iterable[str]) -> str:
    """A module's page in reStructuredText: its docstring, a table of its names, and the docstring of each."""
    imported = importlib.import_module(name)
    top = () if imported is kvviz else names
    elsewhere = [entry for entry in top if getattr(kvviz, entry, None) is getattr(imported, entry)]
    groups: dict[str, list[str]] = {}
    for entry in names:
        if entry not in elsewhere:
            groups.setdefault(_directive(getattr(imported, entry)), []).append(entry)
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", "   :no-members:", "", f".. currentmodule:: {name}"]
    links = ", ".join(f":py:obj:`kvviz.{entry}`" for entry in elsewhere)
    lines += ["", f"Also exported by kvviz: {links}."] * bool(elsewhere)
    for directive in ("autofunction", "autoclass", "autoexception", "autodata"):
        if entries := sorted(groups.get(directive, ()), key=str.lower):
            lines += ["", ".. autosummary::", "   :nosignatures:", "", *(f"   {entry}" for entry in entries)]
    for directive, title in (
        ("autofunction", "Functions"), ("autoclass", "Classes"), ("autoexception", "Errors"), ("autodata", "Values"),
    ):  # fmt: skip
        entries = sorted(groups.get(directive, ()), key=str.lower)
        lines += ["", title, "-" * len(title)] if entries else []
        members = ["   :members:"] if directive in ("autoclass", "autoexception") else []
        for entry in entries:
            lines += ["", f".. {directive}:: {entry}", *members]
    return "\n".join(lines) + "\n"


def _directive(value: object) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if callable(value) and hasattr(value, "__qualname__") else "autodata"


def front(folder: Path) -> None:
    """Write the first page's widgets: a recorded run as it writes the number's first digit, and ClusterKV at work."""
    run = kvviz.Recording.load(RECORDED)
    step = run.next_tokens.index(FIRST_DIGIT)
    stepper = kvviz.widgets.DecodeStepper(run, layer=23, head=0, step=step, span=HIDDEN)
    trace, place = kvviz.Trace.load(TRACE), {"layer": 8, "head": 0, "budget": 128}  # a head that looks far back
    at_work = kvviz.widgets.MechanismStepper(trace, "clusterkv", **place, tokens_per_cluster=20)
    _write(folder / "front.html", frames.framed(stepper.to_html()))
    _write(folder / "at_work.html", frames.framed(at_work.to_html()))


def _code(text: str) -> str:
    return "`" + text.replace("|", r"\|") + "`"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
