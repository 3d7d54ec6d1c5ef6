"""Helpers that run the widgets' JavaScript with Deno."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvviz.widgets import assets

SOURCES = assets.SCRIPT.parents[1] / "js"


def deno(*arguments: str, folder: Path = SOURCES) -> subprocess.CompletedProcess[str]:
    """The finished process of a `deno` command; the test fails if Deno is missing."""
    try:
        from deno import find_deno_bin
    except ImportError:
        pytest.fail("Deno, which bundles the widgets' JavaScript, is missing: `make setup`, or `pip install deno`")
    quiet = {"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"}
    command = [find_deno_bin(), *arguments]
    return subprocess.run(command, cwd=folder, env=os.environ | quiet, capture_output=True, text=True, check=False)


def exported(module: str) -> dict[str, Any]:
    """The constants that a module exports."""
    process = deno("eval", f'import * as names from "./{module}"; console.log(JSON.stringify(names));')
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def returned(module: str, function: str, argument: Any) -> Any:
    """What a function that a module exports returns for one argument."""
    call = f"names.{function}({json.dumps(argument)})"
    process = deno("eval", f'import * as names from "./{module}"; console.log(JSON.stringify({call}));')
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
