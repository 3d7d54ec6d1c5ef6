"""The layout that the package keeps: few names at the top, no circle, no file that only forwards."""

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
def found() -> dict[str, list[str]]:
    """What `make house` names of this repository."""
    command = [sys.executable, str(HOUSE), "--json", "--quick"]
    rows = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return {row["label"].strip(): row["names"] for row in rows}


def test_few_names_at_the_top(found: dict[str, list[str]]) -> None:
    assert "__init__" in found["names at the top of kvviz"]
    assert len(found["names at the top of kvviz"]) <= NAMES


def test_no_module_hides_an_export(found: dict[str, list[str]]) -> None:
    assert found["of them named like an export"] == []


def test_no_circle_between_files_or_rooms(found: dict[str, list[str]]) -> None:
    assert found["circles of files"] == []
    assert found["circles of rooms"] == []


def test_no_file_only_forwards(found: dict[str, list[str]]) -> None:
    assert found["files that only forward"] == FORWARDING
