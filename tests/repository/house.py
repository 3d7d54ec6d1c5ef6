"""Print how large and how tangled the package is, before and after a change.

    make house                         the tree as it stands
    make house AGAINST=v0.1.0          two columns: that revision, and the tree as it stands
    make house ARGS=--list             the duplicates by name too, and what is at the top

The graph is grimp's, of the packages kvviz and kvviz_kernels; nothing of either is imported. A room is a child of
kvviz, file or folder, and kvviz_kernels is one more. An arrow is an import of one by another, wherever in the file it
stands. Arrows for typing, under TYPE_CHECKING only, are counted apart and make no floors; they do close circles, since
those tie files together for a reader too. kvviz/__init__.py is no room, and what it imports is no arrow: that is the
list of the names it exports. Floors are the longest chain of arrows, a circle being one floor.

Duplicates are blocks of at least six lines that pylint finds in two files, comments, docstrings, imports and
signatures aside. It looks at Python only, and not for two copies inside one file.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import grimp
import networkx
from pylint.checkers.symilar import Symilar

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"kvviz": "", "kvviz_kernels": "kernels"}  # where each one's folder lies
FOLDERS = ("kvviz", "kernels")
PYTHON = (".py", ".pyi")  # a stub is written by hand too
NOT_WRITTEN = ("__pycache__", "static")  # static: what a bundler made of the JavaScript beside it
LONG = 300
BLOCK = 6
LISTED_ON_REQUEST = ("duplicates", "names at the top")
USUAL_NAMES = {"__init__", "__main__", "base"}  # nobody takes one of these files for the other


@dataclass(frozen=True)
class Measure:
    """One row of the table, and what it counts where that has names."""

    label: str
    count: int
    names: Sequence[str] = ()


def measure(root: Path, *, duplicates: bool = True) -> list[Measure]:
    """All rows for the tree under `root`; the duplicates take most of the time."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    files = [
        path for path in paths if path.is_file() and path.parent.name not in NOT_WRITTEN and path.name != "py.typed"
    ]
    rows = [*names(root, files), *graph(root), *lines(root, files)]
    return [*rows, *copies(root, files)] if duplicates else rows


def names(root: Path, files: Sequence[Path]) -> Iterator[Measure]:
    """Names at the top of kvviz, those that an export has too, and file names used twice."""
    package = root / "kvviz"
    top_name = {path: path.relative_to(package).parts[0].split(".")[0] for path in files if package in path.parents}
    top = set(top_name.values())
    yield Measure("names at the top of kvviz", len(top), sorted(top))
    shared = sorted(top & exported(package))
    yield Measure("  of them named like an export", len(shared), shared)
    rooms = defaultdict(set)  # by the name of a file in them
    for path, room in top_name.items():
        if path.suffix == ".py" and path.stem not in USUAL_NAMES:
            rooms[path.stem].add(room)
    twice = [f"{stem}: {', '.join(sorted(rooms[stem]))}" for stem in sorted(rooms) if len(rooms[stem]) > 1]
    yield Measure("names of files in two rooms", len(twice), twice)


def exported(package: Path) -> set[str]:
    """Names that the package takes out of its modules: by its stub where it has one, else by its __init__.py."""
    stub = package / "__init__.pyi"
    tree = ast.parse((stub if stub.exists() else package / "__init__.py").read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level and node.module]
    return {alias.asname or alias.name for statement in statements for alias in statement.names}


def graph(root: Path) -> Iterator[Measure]:
    """Floors, arrows and circles, of the rooms and of the files."""
    every, at_run_time = imports(root, type_checking=True), imports(root, type_checking=False)
    yield from measured_graph("rooms", between_rooms(every), between_rooms(at_run_time))
    yield from measured_graph("files", every, at_run_time)


def imports(root: Path, *, type_checking: bool) -> networkx.DiGraph:
    """The direct imports between the modules of both packages."""
    folders = [str(root / folder) for folder in PACKAGES.values()]
    with patch.object(sys, "path", folders + sys.path):
        found = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=not type_checking, cache_dir=None)
    arrows = networkx.DiGraph()
    arrows.add_nodes_from(found.modules)
    for module in found.modules - {"kvviz"}:
        arrows.add_edges_from((module, imported) for imported in found.find_modules_directly_imported_by(module))
    return arrows


def between_rooms(files: networkx.DiGraph) -> networkx.DiGraph:
    """The same imports, each file being its room."""

    def room(module: str) -> str:
        package, *inside = module.split(".")
        return ".".join([package, *inside[:1]]) if package == "kvviz" else package

    rooms = networkx.DiGraph()
    rooms.add_nodes_from(room(module) for module in files)
    rooms.add_edges_from((room(a), room(b)) for a, b in files.edges if room(a) != room(b))
    rooms.remove_node("kvviz")
    return rooms


def measured_graph(what: str, every: networkx.DiGraph, at_run_time: networkx.DiGraph) -> Iterator[Measure]:
    """The rows of one graph, given with the imports for type checkers and without."""
    floors = networkx.dag_longest_path(networkx.condensation(at_run_time))
    arrows = at_run_time.number_of_edges()
    yield Measure(what, len(every))
    yield Measure(f"  floors of {what}", len(floors))
    yield Measure(f"  arrows between {what}", arrows)
    yield Measure(f"  arrows for typing between {what}", every.number_of_edges() - arrows)
    closed = []
    for circle in circles(every):
        remark = "" if circles(at_run_time.subgraph(circle)) else " (for typing only)"
        closed.append(" <-> ".join(sorted(circle)) + remark)
    yield Measure(f"  circles of {what}", len(closed), sorted(closed))


def circles(arrows: networkx.DiGraph) -> list[set[str]]:
    """Sets of more than one node, each reached from every other in its set."""
    return [nodes for nodes in networkx.strongly_connected_components(arrows) if len(nodes) > 1]


def lines(root: Path, files: Sequence[Path]) -> Iterator[Measure]:
    """Physical lines by language, long files, and files that only forward."""
    sources = [path for path in files if path.suffix in {*PYTHON, ".js", ".css"}]
    lengths = {path: len(path.read_text().splitlines()) for path in sources}
    for folder in FOLDERS:
        inside = [path for path in sources if path.suffix in PYTHON and root / folder in path.parents]
        yield Measure(f"lines of Python in {folder}", sum(lengths[path] for path in inside))
    for language, suffix in (("JavaScript", ".js"), ("CSS", ".css")):
        yield Measure(f"lines of {language}", sum(lengths[path] for path in sources if path.suffix == suffix))
    long = [f"{path.relative_to(root)}: {n}" for path, n in lengths.items() if n > LONG]
    yield Measure(f"files above {LONG} lines", len(long), long)
    modules = [path for path in files if path.suffix == ".py" and path.name != "__init__.py"]
    forwarding = [str(path.relative_to(root)) for path in modules if only_forwards(ast.parse(path.read_text()).body)]
    yield Measure("files that only forward", len(forwarding), forwarding)


def only_forwards(statements: Sequence[ast.stmt]) -> bool:
    """Whether a file holds imports and __all__, and nothing else."""

    def forwards(statement: ast.stmt) -> bool:
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                return True
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                return all(map(forwards, [*statement.body, *statement.orelse]))
            case ast.Assign(targets=[ast.Name("__all__")]) | ast.AnnAssign(target=ast.Name("__all__")):
                return True
        return False

    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in statements) and all(map(forwards, statements))


def copies(root: Path, files: Sequence[Path]) -> Iterator[Measure]:
    """Pairs of equal blocks in two files, and the lines that stand in one."""
    checker = Symilar(
        BLOCK - 1,  # pylint reports what is longer than this
        ignore_comments=True, ignore_docstrings=True, ignore_imports=True, ignore_signatures=True,
    )  # fmt: skip
    # Only with nothing to import from: pylint follows each import to infer types, 20 s for torch alone.
    with patch.object(sys, "path", []):
        for path in files:
            if path.suffix == ".py":
                checker.append_stream(str(path.relative_to(root)), io.StringIO(path.read_text()))
    pairs, within = [], set()
    for pair in checker._iter_sims():  # its public report leaves out a third copy
        places = []
        for file, start, end in (
            (pair.fst_lset.name, pair.fst_file_start, pair.fst_file_end),
            (pair.snd_lset.name, pair.snd_file_start, pair.snd_file_end),
        ):
            within |= {(file, line) for line in range(start, end)}
            places.append(f"{file}:{start + 1}-{end}")  # pylint counts from 0
        pairs.append(f"{pair.cmn_lines_nb} lines: {' and '.join(places)}")
    yield Measure("duplicates: pairs of blocks", len(pairs), sorted(pairs))
    yield Measure("duplicates: lines in them", len(within))


def measured_apart(root: Path, options: Sequence[str]) -> list[Measure]:
    """The rows for another tree, by a process of its own: Python remembers where a package lies."""
    command = [sys.executable, __file__, "--root", str(root), "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Measure(**row) for row in json.loads(done.stdout)]


def unpack(root: Path, revision: str, folder: str) -> None:
    """Write what a revision of the repository holds of both packages into a folder."""
    command = ["git", "-C", str(root), "archive", revision, "--", *FOLDERS]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.returncode)  # git has said why
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def table(trees: Sequence[Sequence[Measure]]) -> str:
    """The counts as text, one column for each tree."""
    width = max(len(row.label) for row in trees[-1])
    head = "".join(f"{name:>10}" for name in (("before", "after") if len(trees) > 1 else ()))
    text = [" " * width + head] if head else []
    for rows in zip(*trees, strict=True):
        text += [f"{rows[0].label:{width}}" + "".join(f"{row.count:10,}" for row in rows)]
    return "\n".join(text)


def named(trees: Sequence[Sequence[Measure]], *, everything: bool) -> str:
    """What was counted, by name; of two trees, with - what only the first has and with + what only the second has."""
    parts = []
    for rows in zip(*trees, strict=True):
        if rows[0].label.startswith(LISTED_ON_REQUEST) and not everything:
            continue
        marks = dict.fromkeys(rows[0].names, "-") | dict.fromkeys(rows[-1].names, "+")
        marks |= dict.fromkeys(set(rows[0].names) & set(rows[-1].names), " ")
        if marks:
            parts.append("\n".join([rows[0].label.strip(), *(f"{marks[name]} {name}" for name in sorted(marks))]))
    return "\n\n".join(parts)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--against", metavar="REVISION", help="a revision, for a column before")
    parser.add_argument("--list", action="store_true", help="name the duplicates and what is at the top, too")
    parser.add_argument("--quick", action="store_true", help="leave out the duplicates, which take the most time")
    parser.add_argument("--json", action="store_true", help="for programs")
    given = parser.parse_args()
    trees = [measure(given.root.resolve(), duplicates=not given.quick)]
    if given.json:
        print(json.dumps([asdict(row) for row in trees[0]]))
        return
    if given.against:
        with tempfile.TemporaryDirectory() as folder:
            unpack(given.root, given.against, folder)
            trees.insert(0, measured_apart(Path(folder), ["--quick"] if given.quick else []))
    print(table(trees), named(trees, everything=given.list), sep="\n\n")


if __name__ == "__main__":
    main()
