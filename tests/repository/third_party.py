"""Use a method of another package in every way that runs or draws it, in a process where the package is installed.

`python third_party.py FOLDER` writes recordings and a page to FOLDER, and prints the results as JSON on its last line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import kvviz
from kvviz import plots
from kvviz.widgets import BudgetExplorer
from tests.evaluation.evaluation_tasks import Letters
from tests.tiny_llama import byte_level, tiny_llama

PROMPT = "every good boy deserves favour and so does every girl. " * 2
NAMES = ["stripes", "streaming_llm"]


def drawn(figure) -> list[str]:
    """Colour, dash and marker of the method's curve."""
    (curve,) = [trace for trace in figure.data if trace.name == "stripes"]
    return [curve.line.color, curve.line.dash, curve.marker.symbol]


def main(folder: Path) -> None:
    lm = kvviz.LanguageModel(tiny_llama(), byte_level(eos_token="~"))
    recordings = {}
    for name in NAMES:
        out = kvviz.generate(lm, PROMPT, name, budget=24, max_new_tokens=4, record=True)
        recordings[name] = out.recording
        out.recording.save(folder / f"{name}.safetensors")
    explorer = BudgetExplorer(kvviz.capture(lm, PROMPT), method="stripes", budget=24)
    explorer.to_html(folder / "explorer.html")
    table = kvviz.compare(lm, PROMPT, NAMES, budgets=[24, 32], max_new_tokens=4)
    results = kvviz.evaluate(lm, [Letters()], NAMES, [24, 32], [60], samples=1, out=folder / "results.parquet")
    summary = {
        "listed": "stripes" in kvviz.methods.names() and "stripes" in kvviz.methods.table(),
        "settings": explorer.settings,
        "explorer": explorer.page["colours"],
        "compared": sorted(set(table["method"])),
        "evaluated": sorted(set(results[results["refused"] == ""]["method"])),
        "figures": [drawn(plots.recall_by_budget(table)), drawn(plots.score_by_budget(results))],
        "by name": list(plots.method_style("stripes").values()),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
