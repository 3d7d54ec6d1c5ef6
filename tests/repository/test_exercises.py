"""The exercises of the notebooks: the line as committed, wrong lines with their hints, and a line that solves it.

An exercise is a notebook's last cell. It needs the cell tagged set-up and those in ALSO, and no other.
"""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ALSO = {  # notebook: the ids of cells that its exercise needs
    "01_key_similarity": ("cell-01",),
    "02_query_adjacency": ("cell-01", "cell-09"),
    "05_centroidkv": ("index",),
    "07_ctkvr": ("cell-06",),
    "08_offload_and_caching": ("cell-06",),
    "09_kernels": ("cell-03a", "cell-04"),
}
BOUND = "torch.maximum(query * pages.low, query * pages.high)"
LOGITS = "logits = queries @ entries.keys[0].mT * context.scale"
OVERLAP = "np.isin(np.argsort(first)[-k:], np.argsort(second)[-k:]).sum()"
LINES = {  # notebook: {line: what is printed}; the first is the committed one, the last solves it
    "00_quickstart": {
        "recall = len(chosen) / len(best)": "among the chosen ones",
        "recall = np.isin(chosen, best).mean()": "-1 is no position",
        "recall = np.isin(best, chosen).sum() / (best >= 0).sum()": "-1 is no position",
        "recall = np.isin(best[best >= 0], chosen).mean()": "Solved",
    },
    "01_key_similarity": {
        "mean_cosine = np.zeros(3)": "Not yet",
        "mean_cosine = (units @ units.swapaxes(1, 2)).mean((1, 2))": "shift the array",
        "mean_cosine = 0.5": "got []",
        "mean_cosine = (units[:, :-distance] * units[:, distance:]).sum(-1).mean(-1)": "Solved",
    },
    "02_query_adjacency": {
        "overlap = 0.0": "Not yet",
        f"overlap = {OVERLAP}": "a share of k",
        f"overlap = {OVERLAP} / (2 * k)": "the share of the k largest",
        f"overlap = {OVERLAP} / k": "Solved",
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
    "08_offload_and_caching": {
        "missing = wanted": "Not yet",
        "missing = wanted[:1]": "too few",
        "missing = np.union1d(wanted, before[head])": "too many",
        "missing = np.setdiff1d(wanted, before[head])": "Solved",
    },
    "09_kernels": {
        "share = torch.full_like(lse_1, 0.5)": "Not yet",
        "share = torch.ones(2)": "a number for each query head",
        "share = lse_1 / (lse_1 + lse_2)": "the denominator",
        "share = torch.sigmoid(lse_1 - lse_2)": "Solved",
    },
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
    own = {name: value for name, value in os.environ.items() if name != "KVVIZ_DATA"} | {"KVVIZ_OFFLINE": "1"}
    monkeypatch.setattr(os, "environ", own)  # 09 sets a variable
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.syspath_prepend(str(NOTEBOOKS))
    cells = [cell for cell in nbformat.read(f"{name}.ipynb", 4).cells if cell.cell_type == "code"]
    known: dict[str, object] = {}
    for cell in cells[:-1]:
        if "set-up" in cell.metadata.get("tags", ()) or cell.id in ALSO.get(name, ()):
            exec(cell.source, known)
    exercise = cells[-1].source
    committed, *_, solution = LINES[name]
    assert exercise.count(committed) == 1
    for line, printed in LINES[name].items():
        capsys.readouterr()
        exec(exercise.replace(committed, line), dict(known))
        said = capsys.readouterr().out.strip().splitlines()[-1]
        assert printed in said, line
        assert said.startswith("Solved" if line == solution else "Not yet"), line
