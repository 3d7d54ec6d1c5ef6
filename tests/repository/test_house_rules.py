"""Rules for the package's layout: few names at the top, no circles, no files that only forward."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).with_name("house.py")
NAMES = 16
FORWARDING = ["kvviz/kernels.py"]  # kvviz_kernels under the name that users see


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    """The names that `make house` lists for this repository."""
    command = [sys.executable, str(HOUSE), "--json", "--quick"]
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return {row["label"].strip(): row["names"] for row in rows}


def test_there_are_few_names_at_the_top(names: dict[str, list[str]]) -> None:
    assert "__init__" in names["names at the top of kvviz"]
    assert len(names["names at the top of kvviz"]) <= NAMES


def test_no_module_has_the_name_of_an_export(names: dict[str, list[str]]) -> None:
    assert names["of them named like an export"] == []


def test_files_and_rooms_have_no_circles(names: dict[str, list[str]]) -> None:
    assert names["circles of files"] == []
    assert names["circles of rooms"] == []


def test_no_file_only_forwards(names: dict[str, list[str]]) -> None:
    assert names["files that only forward"] == FORWARDING
