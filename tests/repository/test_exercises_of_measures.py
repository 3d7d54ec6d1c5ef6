"""The exercises of notebooks 01, 02, 08 and 09: the line as stored is not solved, the decisive line is."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OVERLAP = "np.isin(np.argsort(first)[-k:], np.argsort(second)[-k:]).sum()"
CASES = [  # notebook, cells to run before the last one, the line as stored, wrong lines with their hint, the solution
    (
        "01_key_similarity", ("cell-01",), "mean_cosine = np.zeros(3)",
        {"mean_cosine = (units @ units.swapaxes(1, 2)).mean((1, 2))": "shift the array", "mean_cosine = 0.5": "got []"},
        "mean_cosine = (units[:, :-distance] * units[:, distance:]).sum(-1).mean(-1)",
    ),
    (
        "02_query_adjacency", ("cell-01", "cell-09"), "overlap = 0.0",
        {f"overlap = {OVERLAP}": "a share of k", f"overlap = {OVERLAP} / (2 * k)": "the share of the k largest"},
        f"overlap = {OVERLAP} / k",
    ),
    (
        "08_offload_and_caching", ("set-up", "cell-06"), "missing = wanted",
        {"missing = wanted[:1]": "too few", "missing = np.union1d(wanted, before[head])": "too many"},
        "missing = np.setdiff1d(wanted, before[head])",
    ),
    (
        "09_kernels", ("set-up", "cell-03a", "cell-04"), "share = torch.full_like(lse_1, 0.5)",
        {"share = torch.ones(2)": "a number for each query head", "share = lse_1 / (lse_1 + lse_2)": "the denominator"},
        "share = torch.sigmoid(lse_1 - lse_2)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "before", "stored", "wrong", "solution"), CASES, ids=[case[0] for case in CASES])
def test_the_decisive_line_solves_it(name, before, stored, wrong, solution, monkeypatch, capsys):
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    monkeypatch.setattr(os, "environ", os.environ | {"KVVIZ_OFFLINE": "1"})
    sources = {cell.id: cell.source for cell in nbformat.read(f"{name}.ipynb", 4).cells}
    names: dict[str, object] = {}
    for cell in before:
        exec(sources[cell], names)  # the notebook's own cells
    exercise = list(sources.values())[-1]
    line = next(line.strip() for line in exercise.splitlines() if line.strip().startswith(stored))
    for answer, hint in ({line: "Not yet"} | wrong).items():
        said = outcome(exercise.replace(line, answer), names, capsys)
        assert said.startswith("Not yet")
        assert hint in said
    assert outcome(exercise.replace(line, solution), names, capsys) == "Solved."


def outcome(source, names, capsys) -> str:
    """The last line that the exercise prints."""
    capsys.readouterr()
    exec(source, names)
    return capsys.readouterr().out.strip().splitlines()[-1]
