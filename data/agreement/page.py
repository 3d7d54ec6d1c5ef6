"""The page of the comparison with kvpress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from presses import BUDGET, NEW_TOKENS

PROVENANCE = (
    "model", "model_hash", "dtype", "prompt_tokens", "seed", "hardware", "kvpress", "transformers", "torch", "numpy",
    "kvviz", "commit",
)  # fmt: skip


def page(results: Mapping[str, Any], text: str) -> str:
    """The results in Markdown, with `text` on how they were made and why they differ."""
    sections = [
        "# kvviz compared with kvpress",
        "Written by `make agreement`; the agreement of each layer and head is in `kvpress.json`.",
        _lines(["", ""], [[name, str(results[name])] for name in PROVENANCE]),
        "## Which tokens are kept",
        text.strip(),
        _pairs(results["pairs"]),
        "## Presses as methods",
        f"Every press that can be made from its defaults (wrappers around a SnapKVPress), at a budget of {BUDGET} "
        f"tokens, run by `kvviz.cache.kvpress.as_method` in `kvviz.generate`. `kept`: tokens kept per head, mean over "
        f"layers and KV heads, with the minimum and maximum over layers. `same tokens`: how many of the {NEW_TOKENS} "
        "generated tokens equal those of transformers' own cache under the same press. Presses that work during "
        "decoding are left out: kvviz applies a press to the prompt only.",
        _presses(results["presses"]),
    ]
    return "\n\n".join(sections) + "\n"


def _pairs(rows: list[dict[str, Any]]) -> str:
    """A table of the agreement, mean and minimum over heads, and the tokens kept in the first and last layer."""
    head = ["kvviz", "kvpress", "budget", "agreement", "minimum", "kept, first and last layer", "kept by the press"]
    lines = []
    for row in rows:
        heads = [share for layer in row["agreement"] for share in layer]
        kept = [f"{row[name][0]}, {row[name][-1]}" for name in ("kept", "kept_by_press")]
        mean, least = f"{sum(heads) / len(heads):.1%}", f"{min(heads):.1%}"
        lines.append([row["method"], row["press"], str(row["budget"]), mean, least, *kept])
    return _lines(head, lines)


def _presses(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if "refused" in row:
            lines.append([row["press"], "", "", row["refused"].replace("|", "\\|")])
            continue
        counts = row["kept"]
        kept = f"{sum(counts) / len(counts):.1f} ({min(counts)} to {max(counts)})"
        lines.append([row["press"], kept, f"{row['same_tokens']} of {row['tokens']}", ""])
    return _lines(["press", "kept", "same tokens", "reason if not run"], lines)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
