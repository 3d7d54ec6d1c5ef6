"""The exercises of the notebooks: the line as committed, wrong lines with their hints, and a line that solves it.

An exercise is a notebook's last cell, and needs no other cell than the one tagged set-up.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
BOUND = "torch.maximum(query * pages.low, query * pages.high)"
LINES = {  # notebook: {line: what is printed}; the first is the committed one, the last solves it
    "00_quickstart": {
        "recall = len(chosen) / len(best)": "among the chosen ones",
        "recall = np.isin(chosen, best).mean()": "-1 is no position",
        "recall = np.isin(best, chosen).sum() / (best >= 0).sum()": "-1 is no position",
        "recall = np.isin(best[best >= 0], chosen).mean()": "Solved",
    },
    "03_page_fragmentation": {
        "bound = (query * pages.mean).sum(-1)": "in 40 of 40 pages",
        "bound = pages.high @ query": "if q is negative",
        f"bound = {BOUND}": "a number for each of the 40 pages",
        "bound = query.abs() @ torch.maximum(pages.low.abs(), pages.high.abs()).T": "choose in each channel",
        f"bound = {BOUND}.sum(-1)": "Solved",
    },
    "04_clusterkv": {
        "taken = torch.where(size.cumsum(0) <= budget, size, 0)": "some of its tokens",
        "taken = size": "too many",
        "taken = budget": "a number for each of the 26",
        "taken = (budget - size.cumsum(0) + size).clamp(min=0).minimum(size)": "Solved",
    },
}


@pytest.mark.parametrize("name", LINES)
def test_a_right_line_solves_the_exercise_and_others_get_a_hint(name, monkeypatch, capsys):
    monkeypatch.setenv("KVVIZ_OFFLINE", "1")
    monkeypatch.delenv("KVVIZ_DATA", raising=False)
    monkeypatch.chdir(NOTEBOOKS)
    cells = [cell for cell in json.loads(Path(f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    (prepare,) = ("".join(cell["source"]) for cell in cells if "set-up" in cell["metadata"].get("tags", ()))
    exercise = "".join(cells[-1]["source"])
    known: dict[str, object] = {}
    exec(prepare, known)
    committed, *_, solution = LINES[name]
    for line, printed in LINES[name].items():
        assert exercise.count(committed) == 1
        capsys.readouterr()
        exec(exercise.replace(committed, line), dict(known))
        said = capsys.readouterr().out.splitlines()[-1]
        assert printed in said, line
        assert said.startswith("Solved" if line == solution else "Not yet: "), line
