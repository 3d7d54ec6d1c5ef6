"""The README agrees with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvviz

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE = README.partition("<!-- example -->\n```python\n")[2].partition("```")[0]


def test_the_table_of_methods_is_current() -> None:
    assert f"<!-- methods -->\n{kvviz.methods.table()}\n<!-- /methods -->" in README


def test_the_table_of_tasks_is_current() -> None:
    command = [sys.executable, "-c", "import kvviz; print(kvviz.tasks.table())"]  # other tests register more tasks
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"<!-- tasks -->\n{table}<!-- /tasks -->" in README


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_paths_and_targets_in_the_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    paths = re.findall(r"\]\((?!https?:)([^)]+)\)", text) + re.findall(
        r"`((?:kvviz|notebooks|tests|kernels)/[\w./]+)`", text
    )
    assert not [path for path in paths if not (ROOT / path).exists()]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


@pytest.mark.slow
@pytest.mark.model
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) == 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(EXAMPLE, names)
    recording = names["out"].recording
    assert 0 < recording.summary()["recall"] < 1
    assert recording.answer in capsys.readouterr().out
    assert names["stepper"].recording is recording
    assert "clusterkv" in (tmp_path / "stepper.html").read_text()
