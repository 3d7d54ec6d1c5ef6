"""Workflows on GitHub and commit hooks: the files are valid and agree with pyproject.toml and the Makefile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from .test_environment import PROJECT, ROOT

PROGRAMS = Path(sys.executable).parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"


def workflow(name: str) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    return content


def actionlint(*paths: Path) -> subprocess.CompletedProcess[str]:
    """The result of actionlint, without other linters that may be installed."""
    command = [PROGRAMS / "actionlint", "-shellcheck=", "-pyflakes=", "-oneline", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_workflows_have_no_errors() -> None:
    process = actionlint(*WORKFLOWS)
    assert (process.returncode, process.stdout) == (0, "")
    assert {path.stem for path in WORKFLOWS} == {"check", "site"}


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("needs: build", "needs: built", 'needs job "built" which does not exist'),
        ("timeout-minutes: 10", "timeout: 10", 'unexpected key "timeout"'),
        ("steps.deployment.outputs", "steps.deployed.outputs", 'property "deployed" is not defined'),
    ],
)
def test_actionlint_finds_errors(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    text = (ROOT / ".github/workflows/site.yml").read_text()
    assert right in text
    (tmp_path / "site.yml").write_text(text.replace(right, wrong))
    process = actionlint(tmp_path / "site.yml")
    assert process.returncode == 1
    assert message in process.stdout


def test_every_supported_python_is_tested() -> None:
    prefix = "Programming Language :: Python :: "
    supported = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    jobs = workflow("check")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python-version"] == supported
    assert PROJECT["requires-python"] == f">={supported[0]}"
    used = re.findall(r"python-version: (.*)", "".join(path.read_text() for path in WORKFLOWS))
    oldest, matrix = f'"{supported[0]}"', "${{ matrix.python-version }}"
    assert sorted(set(used)) == sorted([oldest, matrix, str(supported).replace("'", '"')])


def test_the_jobs_run_targets_of_the_makefile() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    jobs = [job for path in WORKFLOWS for job in workflow(path.stem)["jobs"].values()]
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert sorted(commands) == ["make lint", "make site", "make test"]
    assert {command.removeprefix("make ") for command in commands} <= set(targets)


def test_only_the_deployment_may_write() -> None:
    allowed = {
        (path.stem, name): job.get("permissions", workflow(path.stem)["permissions"])
        for path in WORKFLOWS
        for name, job in workflow(path.stem)["jobs"].items()
    }
    assert allowed.pop(("site", "deploy")) == {"pages": "write", "id-token": "write"}
    assert all(permissions == {"contents": "read"} for permissions in allowed.values())


def test_the_hooks_need_no_other_host() -> None:
    subprocess.run([PROGRAMS / "pre-commit", "validate-config", HOOKS], check=True)
    assert [repository["repo"] for repository in yaml.safe_load(HOOKS.read_text())["repos"]] == ["local"]


@pytest.mark.parametrize(
    ("hook", "name", "good", "bad"),
    [
        ("ruff", "example.py", "import os\n\nprint(os.name)\n", "import os\n"),
        ("notebooks", "example.ipynb", "{}", '{"application/vnd.jupyter.widget-state+json": {}}'),
        ("actionlint", ".github/workflows/check.yml", WORKFLOWS[0].read_text(), "on: push\n"),
    ],
)
def test_a_hook_lets_only_the_good_file_pass(tmp_path: Path, hook: str, name: str, good: str, bad: str) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    shutil.copy(HOOKS, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(PROGRAMS)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [PROGRAMS / "pre-commit", "run", hook, "--files", name]
    environment = os.environ | {"PRE_COMMIT_HOME": str(tmp_path / "home")}
    for text, status in ((good, 0), (bad, 1)):
        file.write_text(text)
        process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert process.returncode == status, process.stdout + process.stderr
        assert "Skipped" not in process.stdout
