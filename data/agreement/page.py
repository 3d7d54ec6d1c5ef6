"""The page that shows what was compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from presses import BUDGET, NEW_TOKENS

PROVENANCE = (
    "model", "model_hash", "dtype", "prompt_tokens", "seed", "hardware", "kvpress", "transformers", "torch", "numpy",
    "kvviz", "commit",
)  # fmt: skip


def page(found: Mapping[str, Any], text: str) -> str:
    """Markdown of results, with `text` to say how they were made and why they differ."""
    sections = [
        "# kvviz beside kvpress",
        "Written by `make agreement`; the agreement of each layer and head is in `kvpress.json`.",
        _lines(["", ""], [[name, str(found[name])] for name in PROVENANCE]),
        "## Which tokens are kept",
        text.strip(),
        _pairs(found["pairs"]),
        "## Presses as methods",
        f"Every press that can be made from its defaults (wrappers around a SnapKVPress), at a budget of {BUDGET} "
        f"tokens, run by `kvviz.cache.kvpress.as_method` in `kvviz.generate`. `kept`: tokens that a head keeps, mean "
        f"over layers and KV heads, with the least and the most of any layer. `same tokens`: how many of the "
        f"{NEW_TOKENS} tokens written are those that transformers' own cache leads to under the same press. Presses "
        "that work while decoding are left out: kvviz asks a press for a prompt alone.",
        _presses(found["presses"]),
    ]
    return "\n\n".join(sections) + "\n"


def _pairs(rows: list[dict[str, Any]]) -> str:
    """Mean agreement over layers and heads, the least of any head, tokens kept in the outer layers."""
    head = ["kvviz", "kvpress", "budget", "agreement", "least", "kept, first and last layer", "kept by the press"]
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
    return _lines(["press", "kept", "same tokens", "not run, because"], lines)


def _lines(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
