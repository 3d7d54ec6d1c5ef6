"""The exercises of notebooks 05 to 07: the line as committed, wrong lines with their hints, a line that solves it.

An exercise is a notebook's last cell. It needs the cell tagged set-up and those in ALSO, and no other.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ALSO = {"05_centroidkv": "index", "07_ctkvr": "cell-06"}  # notebook: the id of a cell
LOGITS = "logits = queries @ entries.keys[0].mT * context.scale"
LINES = {  # notebook: {line: what is printed}; the first is the committed one, the last solves it
    "05_centroidkv": {
        LOGITS: "Which logit alone adds as much?",
        f"{LOGITS} + n": "Which logit alone adds as much?",
        f"{LOGITS} * n": "Which logit alone adds as much?",
        "logits = queries": "a number for each query head and entry",
        f"{LOGITS} + n.log()": "Solved",
    },
    "06_pqcache": {
        "scores = table.sum().expand(len(codes))": "What does its second?",
        "scores = table[0, codes[:, 0]]": "What does its second?",
        "scores = table[:, codes].sum(0)": "one number for each of the 2,012 tokens",
        "scores = table[0, codes[:, 0]] + table[1, codes[:, 1]]": "Solved",
    },
    "07_ctkvr": {
        "scores = -union.float()": "products of the queries with the keys",
        "scores = asked @ listed.T": "one number for each of the 559 tokens",
        "scores = (asked @ listed.T).amax(0)": "not on one scale",
        "scores = (asked @ listed.T / 8).softmax(-1).mean(0)": "the head that needs it most",
        "scores = (asked @ listed.T).softmax(-1).amax(0)": "divides by √64",
        "scores = (asked @ listed.T / 8).softmax(-1).amax(0)": "Solved",
    },
}


@pytest.mark.parametrize("name", LINES)
def test_a_right_line_solves_the_exercise_and_others_get_a_hint(name, monkeypatch, capsys):
    monkeypatch.setenv("KVVIZ_OFFLINE", "1")
    monkeypatch.delenv("KVVIZ_DATA", raising=False)
    monkeypatch.chdir(NOTEBOOKS)
    cells = [cell for cell in json.loads(Path(f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    known: dict[str, object] = {}
    for cell in cells:
        if "set-up" in cell["metadata"].get("tags", ()) or cell["id"] == ALSO.get(name):
            exec("".join(cell["source"]), known)
    exercise = "".join(cells[-1]["source"])
    committed, *_, solution = LINES[name]
    assert exercise.count(committed) == 1
    for line, printed in LINES[name].items():
        capsys.readouterr()
        exec(exercise.replace(committed, line), dict(known))
        said = capsys.readouterr().out.splitlines()[-1]
        assert printed in said, line
        assert said.startswith("Solved" if line == solution else "Not yet: "), line
