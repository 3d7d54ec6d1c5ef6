"""make house, on a small package with known numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

HOUSE = Path(__file__).with_name("house.py")

# Six lines that are the same for every name; the signature, the docstring and the comment do not count.
BLOCK = """
    def {name}(numbers: list[float]) -> float:
        '''{name} of the numbers.'''
        total = 0.0
        count = 0
        for number in numbers:  # {name}
            total += number
            count += 1
        return total / count
"""
FILES = {
    "kvviz/__init__.py": """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from . import store
            from .replay import replay
            from .draw.page import Page
    """,
    "kvviz/errors.py": "raise RuntimeError('nothing may be imported')",
    "kvviz/replay.py": "from . import errors\n" + dedent(BLOCK.format(name="replay")),
    "kvviz/forward.py": """
        '''Old names.'''
        from .errors import Error

        __all__ = ["Error"]
    """,
    "kvviz/store/__init__.py": "from .cache import Cache\n",
    "kvviz/store/cache.py": "from .layer import layer\n\nLAYERS = [layer]\n",
    "kvviz/store/layer.py": """
        def late():
            from ..errors import Error
            from .cache import Cache
    """
    + BLOCK.format(name="layer").replace("\n    ", "\n        "),
    "kvviz/draw/__init__.py": "",
    "kvviz/draw/layer.py": "from kvviz_kernels import naive\n" + dedent(BLOCK.format(name="drawn")),
    "kvviz/draw/page.py": "from .widget import Widget\n\nNUMBERS = {\n" + "    1: 2,\n" * 298 + "}\n",
    "kvviz/draw/widget.py": """
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from ..store import Cache
            from .page import Page

        WIDTH = 3
    """,
    "kvviz/draw/widget.js": "export default {};\n",
    "kvviz/draw/widget.css": "b { color: red }\n",
    "kvviz/py.typed": "",
    "kvviz/__pycache__/gone.cpython-311.pyc": "",
    "kernels/kvviz_kernels/__init__.py": "from .naive import assign\n",
    "kernels/kvviz_kernels/naive.py": "import torch\n\nassign = torch.argmin\n",
    "kernels/bench.py": "import kvviz_kernels\n\nprint(kvviz_kernels)\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).removeprefix("\n"))
    return tmp_path / "tree"


def house(tree: Path, *options: str) -> str:
    command = [sys.executable, str(HOUSE), "--root", str(tree), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def git(tree: Path, *arguments: str) -> None:
    author = {
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@b.c",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@b.c",
    }
    subprocess.run(["git", "-C", str(tree), *arguments], check=True, capture_output=True, env=os.environ | author)


def test_all_numbers_of_a_small_package(tree: Path) -> None:
    rows = json.loads(house(tree, "--json"))
    assert {row["label"].strip(): row["count"] for row in rows} == {
        "names at the top of kvviz": 6,
        "of them named like an export": 1,
        "names of files in two rooms": 1,
        "rooms": 6,
        "floors of rooms": 2,
        "arrows between rooms": 4,
        "arrows for typing between rooms": 1,
        "circles of rooms": 0,
        "files": 13,
        "floors of files": 3,
        "arrows between files": 9,
        "arrows for typing between files": 2,
        "circles of files": 2,
        "lines of Python in kvviz": 356,
        "lines of Python in kernels": 7,
        "lines of JavaScript": 1,
        "lines of CSS": 1,
        "files above 300 lines": 1,
        "files that only forward": 1,
        "duplicates: pairs of blocks": 3,
        "duplicates: lines in them": 18,
    }
    names = {row["label"].strip(): row["names"] for row in rows}
    assert names["names at the top of kvviz"] == ["__init__", "draw", "errors", "forward", "replay", "store"]
    assert names["of them named like an export"] == ["replay"]
    assert names["names of files in two rooms"] == ["layer: draw, store"]
    assert names["circles of files"] == [
        "kvviz.draw.page <-> kvviz.draw.widget (for typing only)",
        "kvviz.store.cache <-> kvviz.store.layer",
    ]
    assert names["files above 300 lines"] == ["kvviz/draw/page.py: 302"]
    assert names["files that only forward"] == ["kvviz/forward.py"]
    assert names["duplicates: pairs of blocks"] == [
        "6 lines: kvviz/draw/layer.py:5-10 and kvviz/replay.py:5-10",
        "6 lines: kvviz/draw/layer.py:5-10 and kvviz/store/layer.py:7-12",
        "6 lines: kvviz/replay.py:5-10 and kvviz/store/layer.py:7-12",
    ]


def test_exports_are_read_from_the_stub(tree: Path) -> None:
    (tree / "kvviz" / "__init__.pyi").write_text("from .errors import Error as Error\nfrom .draw import draw as draw\n")
    rows = {row["label"].strip(): row for row in json.loads(house(tree, "--json", "--quick"))}
    assert rows["names at the top of kvviz"]["count"] == 6
    assert rows["of them named like an export"]["names"] == ["draw"]
    assert "duplicates: pairs of blocks" not in rows


@pytest.mark.slow
def test_before_and_after(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tree, "init")
    git(tree, "add", ".")
    git(tree, "commit", "--message", "before")
    (tree / "kvviz" / "forward.py").unlink()
    (tree / "kvviz" / "store" / "layer.py").write_text("def layer() -> int:\n    return 1\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    text = house(tree, "--against", "HEAD", "--list")
    columns = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    assert columns[0] == ["before", "after"]
    assert ["circles", "of", "files", "2", "1"] in columns
    assert ["names", "at", "the", "top", "of", "kvviz", "6", "5"] in columns
    assert ["duplicates:", "pairs", "of", "blocks", "3", "1"] in columns
    assert "\n- forward\n" in text
    assert "\n- kvviz.store.cache <-> kvviz.store.layer\n" in text
    assert "\n  kvviz.draw.page <-> kvviz.draw.widget (for typing only)\n" in text
    assert not list(scratch.iterdir())
    with pytest.raises(subprocess.CalledProcessError) as refused:
        house(tree, "--against", "no-such-revision")
    assert "no-such-revision" in refused.value.stderr
    assert not list(scratch.iterdir())
