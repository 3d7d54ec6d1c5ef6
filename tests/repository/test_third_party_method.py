"""A method of another package keeps its group name, colour and sliders everywhere; kvviz does not mention it."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvviz import methods, plots
from kvviz.evaluation import load_results
from kvviz.trace import Recording
from kvviz.widgets import DecodeStepper, MethodComparer
from tests.widgets.test_stepper_page import embedded

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PACKAGE = '''
"""Every other stripe of tokens: a package of somebody else."""

from dataclasses import dataclass

import torch

from kvviz.methods import Method, Selection, Slider, State, Style


@dataclass
class Stripes(Method):
    """The newest token, and stripes of `width` tokens, every other one first."""

    name = "stripes"
    title = "Stripes"
    paper = "none"
    kind = "retrieval"
    group_name = "stripe"
    style = Style("#AA3377", "longdash", "star")
    sliders = (Slider("width", "stripe width", (2, 4, 8), "tokens of a stripe"),)
    needs_queries = False

    width: int = 4

    def build(self, layer, queries, keys, values):
        return State(layer, keys.shape[2], keys.shape[2])

    def extend(self, state, queries, keys, values):
        state.length += keys.shape[2]
        return state

    def select(self, state, queries):
        newest, count = state.length - 1, min(self.budget_tokens(state.prompt_length), state.length)
        stripes = torch.arange(newest) // self.width
        first = torch.argsort(stripes % 2, stable=True)[: count - 1].sort().values
        shape = (queries.shape[0], state.layer.n_kv_heads, count)
        indices = torch.cat([first, torch.tensor([newest])])
        groups = torch.cat([stripes[first], torch.tensor([-1])])
        scores = torch.cat([1.0 - stripes[first] % 2, torch.tensor([torch.nan])])
        return Selection(indices.expand(shape), groups.int().expand(shape), scores.float().expand(shape))
'''
STYLE = ["#AA3377", "longdash", "star"]


def run(*command: str, path: str) -> str:
    """The last line that a new Python process prints; `path` is its PYTHONPATH."""
    environment = os.environ | {"PYTHONPATH": path}
    process = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the package as pip installs it, and the results of a process that uses its method."""
    folder = tmp_path_factory.mktemp("third party")
    site = folder / "site"
    (site / "striper-1.0.dist-info").mkdir(parents=True)
    (site / "striper.py").write_text(PACKAGE)
    (site / "striper-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: striper\nVersion: 1.0\n")
    (site / "striper-1.0.dist-info" / "entry_points.txt").write_text("[kvviz.methods]\nstripes = striper:Stripes\n")
    path = os.pathsep.join([str(site), str(ROOT), str(ROOT / "kernels")])
    results = run("-m", "tests.repository.third_party", str(folder), path=path)
    (folder / "results.json").write_text(results)
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def recordings(folder):
    """The two recordings, read without the package."""
    return [Recording.load(folder / f"{name}.safetensors") for name in ("stripes", "streaming_llm")]


def test_it_runs_like_any_method(results):
    assert results["listed"]
    assert results["compared"] == results["evaluated"] == ["streaming_llm", "stripes"]


def test_figures_have_its_colour_dash_and_marker(results):
    assert results["figures"] == [STYLE, STYLE]
    assert results["by name"] == STYLE


def test_the_explorer_has_its_sliders_group_name_and_colour(folder, results):
    assert results["settings"] == {"width": 4}
    assert results["explorer"] == {"light": "#AA3377", "dark": "#b4618b"}  # legible on the dark page
    data, slices = embedded((folder / "explorer.html").read_text(encoding="utf-8"))
    (slider,) = data["page"]["sliders"]
    assert slider == {
        "name": "width", "label": "stripe width", "values": [2, 4, 8], "meaning": "tokens of a stripe"
    }  # fmt: skip
    assert data["page"]["group_name"] == "stripe"
    assert len(slices) == 3 * len(data["page"]["budgets"])


def test_the_stepper_has_its_group_name(recordings):
    data, _ = embedded(DecodeStepper(recordings[0]).to_html())
    assert data["page"]["group_name"] == "stripe"
    assert embedded(DecodeStepper(recordings[1]).to_html())[0]["page"]["group_name"] == "cluster"


def test_the_comparer_has_its_group_name_and_colour(recordings):
    page = embedded(MethodComparer(recordings).to_html())[0]["page"]
    stripes, streaming = page["methods"]
    assert (stripes["group_name"], stripes["light"], stripes["dark"]) == ("stripe", "#AA3377", "#b4618b")
    assert streaming["light"] == plots.method_style("streaming_llm")["color"]


def test_a_recording_is_drawn_alike_without_the_package_and_torch(folder):
    program = """
import sys
from kvviz import plots
from kvviz.trace import Recording
run = Recording.load(sys.argv[1])
print(plots.selection_map(run, run.layers[0]).data[0].fillcolor, run.group_name, "torch" in sys.modules)
"""
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    assert run("-c", program, str(folder / "stripes.safetensors"), path=path) == "#AA3377 stripe False"


def test_results_are_drawn_alike_where_the_package_is_not_installed(folder):
    results = load_results(folder / "results.parquet")
    (curve,) = [trace for trace in plots.score_by_budget(results).data if trace.name == "stripes"]
    assert [curve.line.color, curve.line.dash, curve.marker.symbol] == STYLE


def compared_or_listed(path: Path) -> set[str]:
    """The strings in a file's dicts, lists, tuples, sets and comparisons."""
    parts: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Dict):
            parts += node.keys
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts += node.elts
        elif isinstance(node, ast.Compare):
            parts += [node.left, *node.comparators]
    return {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def test_there_is_no_list_of_methods_to_edit():
    """Outside their files, methods are named only as defaults and in examples, except for the two references."""
    names = set(methods.names()) - {"full", "oracle"}
    closed = ROOT / "kvviz" / "trace" / "earlier.py"  # for older files
    python = [path for path in ROOT.glob("kvviz/**/*.py") if path.parent.name != "methods" and path != closed]
    assert len(compared_or_listed(closed) & names) == 17, "it names the methods of its time, and no later ones"
    assert {path.name: listed for path in python if (listed := compared_or_listed(path) & names)} == {}
    for path in ROOT.glob("kvviz/widgets/js/*.js"):
        assert not set(re.findall(r"[\"'`](\w+)[\"'`]", path.read_text(encoding="utf-8"))) & names, path
