"""Print how large and how tangled the package is, before and after a change.

    make house                         the tree as it stands
    make house AGAINST=v0.1.0          two columns: that revision, and the tree as it stands
    make house ARGS=--list             the duplicates by name too, and what is at the top

grimp builds the graph of the packages kvviz and kvviz_kernels without importing them. A room is a file or folder in
kvviz, or kvviz_kernels. An arrow is an import, anywhere in a file. Arrows for typing (under TYPE_CHECKING) are counted
separately: they do not count for floors, but they do for circles, since such files also depend on each other for a
reader. kvviz/__init__.py is not a room and its imports are not arrows, since it only lists the exported names. The
floors are the longest chain of arrows, where a circle counts as one floor.

Duplicates are blocks of at least six lines that pylint finds in two files, without comments, docstrings, imports and
signatures. It compares Python only, and does not look for two copies in one file.
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
PACKAGES = {"kvviz": "", "kvviz_kernels": "kernels"}  # the folder that contains each package
FOLDERS = ("kvviz", "kernels")
PYTHON = (".py", ".pyi")  # a stub is written by hand too
NOT_WRITTEN = ("__pycache__", "static")  # static: what a bundler made of the JavaScript beside it
LONG = 300
BLOCK = 6
LISTED_ON_REQUEST = ("duplicates", "names at the top")
USUAL_NAMES = {"__init__", "__main__", "base"}  # files that nobody confuses


@dataclass(frozen=True)
class Measure:
    """One row of the table, and the names of the counted things, if they have names."""

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
    """Names at the top of kvviz, those that equal an exported name, and file names used twice."""
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
    """Names that the package exports from its modules, by its stub if it has one, otherwise by its __init__.py."""
    stub = package / "__init__.pyi"
    tree = ast.parse((stub if stub.exists() else package / "__init__.py").read_text())
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level and node.module]
    return {alias.asname or alias.name for statement in statements for alias in statement.names}


def graph(root: Path) -> Iterator[Measure]:
    """Floors, arrows and circles, of the rooms and of the files."""
    all_imports, at_run_time = imports(root, type_checking=True), imports(root, type_checking=False)
    yield from measured_graph("rooms", between_rooms(all_imports), between_rooms(at_run_time))
    yield from measured_graph("files", all_imports, at_run_time)


def imports(root: Path, *, type_checking: bool) -> networkx.DiGraph:
    """The direct imports between the modules of both packages."""
    folders = [str(root / folder) for folder in PACKAGES.values()]
    with patch.object(sys, "path", folders + sys.path):
        graph_of = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=not type_checking, cache_dir=None)
    arrows = networkx.DiGraph()
    arrows.add_nodes_from(graph_of.modules)
    for module in graph_of.modules - {"kvviz"}:
        arrows.add_edges_from((module, imported) for imported in graph_of.find_modules_directly_imported_by(module))
    return arrows


def between_rooms(files: networkx.DiGraph) -> networkx.DiGraph:
    """The same imports between rooms instead of files."""

    def room(module: str) -> str:
        package, *inside = module.split(".")
        return ".".join([package, *inside[:1]]) if package == "kvviz" else package

    rooms = networkx.DiGraph()
    rooms.add_nodes_from(room(module) for module in files)
    rooms.add_edges_from((room(a), room(b)) for a, b in files.edges if room(a) != room(b))
    rooms.remove_node("kvviz")
    return rooms


def measured_graph(kind: str, arrows: networkx.DiGraph, at_run_time: networkx.DiGraph) -> Iterator[Measure]:
    """The rows of one graph; `arrows` includes imports for typing, `at_run_time` does not."""
    floors = networkx.dag_longest_path(networkx.condensation(at_run_time))
    count = at_run_time.number_of_edges()
    yield Measure(kind, len(arrows))
    yield Measure(f"  floors of {kind}", len(floors))
    yield Measure(f"  arrows between {kind}", count)
    yield Measure(f"  arrows for typing between {kind}", arrows.number_of_edges() - count)
    closed = []
    for circle in circles(arrows):
        remark = "" if circles(at_run_time.subgraph(circle)) else " (for typing only)"
        closed.append(" <-> ".join(sorted(circle)) + remark)
    yield Measure(f"  circles of {kind}", len(closed), sorted(closed))


def circles(arrows: networkx.DiGraph) -> list[set[str]]:
    """Strongly connected components with more than one node."""
    return [nodes for nodes in networkx.strongly_connected_components(arrows) if len(nodes) > 1]


def lines(root: Path, files: Sequence[Path]) -> Iterator[Measure]:
    """Physical lines per language, long files, and files that only forward."""
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
    """Whether a file contains only imports and __all__."""

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
    """Pairs of equal blocks in two files, and the number of lines in such blocks."""
    checker = Symilar(
        BLOCK - 1,  # pylint reports blocks that are longer
        ignore_comments=True, ignore_docstrings=True, ignore_imports=True, ignore_signatures=True,
    )  # fmt: skip
    # With an empty path, pylint cannot follow imports to infer types, which takes 20 s for torch alone.
    with patch.object(sys, "path", []):
        for path in files:
            if path.suffix == ".py":
                checker.append_stream(str(path.relative_to(root)), io.StringIO(path.read_text()))
    pairs, within = [], set()
    for pair in checker._iter_sims():  # its public report omits a third copy
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
    """The rows for another tree, from a new process, since Python caches the location of packages."""
    command = [sys.executable, __file__, "--root", str(root), "--json", *options]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Measure(**row) for row in json.loads(process.stdout)]


def unpack(root: Path, revision: str, folder: str) -> None:
    """Write both packages of a revision to a folder."""
    command = ["git", "-C", str(root), "archive", revision, "--", *FOLDERS]
    process = subprocess.run(command, stdout=subprocess.PIPE)
    if process.returncode:
        raise SystemExit(process.returncode)  # git has printed the reason
    with tarfile.open(fileobj=io.BytesIO(process.stdout)) as archive:
        archive.extractall(folder, filter="data")


def table(trees: Sequence[Sequence[Measure]]) -> str:
    """The counts as text, one column per tree."""
    width = max(len(row.label) for row in trees[-1])
    head = "".join(f"{name:>10}" for name in (("before", "after") if len(trees) > 1 else ()))
    text = [" " * width + head] if head else []
    for rows in zip(*trees, strict=True):
        text += [f"{rows[0].label:{width}}" + "".join(f"{row.count:10,}" for row in rows)]
    return "\n".join(text)


def named(trees: Sequence[Sequence[Measure]], *, everything: bool) -> str:
    """The names of the counted things; for two trees, - marks names of the first only, + of the second only."""
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
    parser.add_argument("--list", action="store_true", help="also list the duplicates and the names at the top")
    parser.add_argument("--quick", action="store_true", help="leave out the duplicates, which take the most time")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    trees = [measure(options.root.resolve(), duplicates=not options.quick)]
    if options.json:
        print(json.dumps([asdict(row) for row in trees[0]]))
        return
    if options.against:
        with tempfile.TemporaryDirectory() as folder:
            unpack(options.root, options.against, folder)
            trees.insert(0, measured_apart(Path(folder), ["--quick"] if options.quick else []))
    print(table(trees), named(trees, everything=options.list), sep="\n\n")


if __name__ == "__main__":
    main()
