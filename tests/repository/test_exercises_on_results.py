"""The exercises of the notebooks that compare methods: wrong lines get a hint, and the right line solves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LINES = {  # notebook: {line: what is printed}; the first is the committed one, the last solves it
    "10_compare_methods": {
        "attended = weights[:, sentence].sum(1)": "what the heads ask for",
        "attended = np.isin(sentence, indices).sum()": "each of the 3 heads",
        "attended = np.array([np.isin(sentence, chosen).mean() for chosen in indices])": "add up the weights",
        "attended = (weights[:, sentence] * (indices[..., None] == sentence).any(1)).sum(1)": "Solved",
    },
    "12_results": {
        "means = gain": "one mean is wanted for each of the 10,000 rows",
        "means = gain[picked]": "one mean is wanted",
        "means = gain[picked[:, 0]]": "which differences does a row",
        "means = gain[picked].mean(1)": "Solved",
    },
    "13_why_was_it_missed": {
        'recall = (wanted["stage"] == "attended").mean()': "add up the exact weights",
        'recall = wanted["stage"] == "attended"': "one number",
        'recall = wanted["exact_weight"][wanted["stage"] == "attended"].sum()': "A share of what",
        'recall = wanted["exact_weight"][wanted["stage"] == "attended"].sum() / wanted["exact_weight"].sum()': "Solved",
    },
}


@pytest.mark.parametrize("name", LINES)
def test_a_right_line_solves_the_exercise_and_others_get_a_hint(name, monkeypatch, capsys):
    """An exercise is the last cell, and needs no other cell than the one tagged set-up."""
    monkeypatch.setenv("KVVIZ_OFFLINE", "1")
    monkeypatch.delenv("KVVIZ_DATA", raising=False)
    monkeypatch.chdir(NOTEBOOKS)
    cells = [cell for cell in json.loads(Path(f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    (prepare,) = ("".join(cell["source"]) for cell in cells if "set-up" in cell["metadata"].get("tags", ()))
    exercise = "".join(cells[-1]["source"])
    known: dict[str, object] = {}
    exec(prepare, known)
    committed, *_, solution = LINES[name]
    assert exercise.count(committed) == 1
    for line, printed in LINES[name].items():
        capsys.readouterr()
        exec(exercise.replace(committed, line), dict(known))
        said = capsys.readouterr().out.splitlines()[-1]
        assert printed in said, line
        assert said.startswith("Solved" if line == solution else "Not yet: "), line
