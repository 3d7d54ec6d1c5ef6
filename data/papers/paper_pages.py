"""The pages: README.md with one row per figure and table, and a page per paper with pictures."""

from __future__ import annotations

import html
from collections import Counter

from entries import ENTRIES, PAPERS, SOURCES, Entry, Finding, wanted

from kvviz.errors import InvalidInputError

OUTCOMES = {
    "reproduced": "what the paper claims is true of our numbers, on a small model and short texts",
    "not reproduced": "it is not; the page of the paper says why, as far as it is known",
    "schematic": "a picture of a mechanism; ours is drawn from real data by the production code",
    "needs a GPU": "the command is ready and tested at a small size, but has not run at the paper's",
    "needs a model or data": "the loader and the command are ready and tested on small data",
    "not measured yet": "the command is ready and tested at a small size, but has not run",
}
INTRODUCTION = """# The papers' figures and tables, beside ours

<!-- Written by data/papers/make.py. -->

kvviz accounts for every figure and table of the four papers whose systems it implements. The papers measure models of 7
to 70 billion parameters on GPUs; kvviz measures {model} on a CPU, so numbers differ, and what is compared is the
*claim*: the order of methods, the direction of an effect. `make papers` writes these pages from stored results, without
a model; `make papers ARGS="--measure NAME"` measures again, `ARGS=--list` lists the measurements. Whether a claim holds
is computed from the numbers.

"""


def written(findings: dict[tuple[str, str], Finding]) -> dict[str, str]:
    """The text of every page, by file name."""
    overview = {"README.md": _overview(findings)}
    return overview | {_page_of(paper): _paper(paper, findings) for paper in PAPERS}


def _page_of(paper: str) -> str:
    return f"{paper.lower()}.md"


def _overview(findings: dict[tuple[str, str], Finding]) -> str:
    outcomes = {key: ENTRIES[key].outcome(finding) for key, finding in findings.items()}
    counts = Counter(outcomes.values())
    by_paper = {paper: Counter(outcome for (name, _), outcome in outcomes.items() if name == paper) for paper in PAPERS}
    head = ["outcome", *PAPERS, "all", "meaning"]
    rows = [
        [outcome, *(str(by_paper[paper][outcome] or "") for paper in PAPERS), str(counts[outcome]), meaning]
        for outcome, meaning in OUTCOMES.items()
    ]
    parts = [INTRODUCTION.format(model="SmolLM2-135M-Instruct") + _table(head, rows)]
    for paper in PAPERS:
        rows = [
            [
                f"[{_short(item)}]({_page_of(paper)})",
                entry.shows,
                entry.headline,
                findings[paper, item].ours,
                f"*{outcomes[paper, item]}*",
            ]
            for _, item in wanted()
            if _ == paper and (entry := ENTRIES.get((paper, item)))
        ]
        parts.append(f"## {paper}\n\n{SOURCES[paper]}\n\n" + _table(["", "shows", "paper", "kvviz", ""], rows))
    return "\n\n".join(parts) + "\n"


def _paper(paper: str, findings: dict[tuple[str, str], Finding]) -> str:
    parts = [
        f"# {paper}: its figures and tables, beside ours\n\n<!-- Written by data/papers/make.py. -->\n\n"
        f"{SOURCES[paper]}. [All four papers](README.md)"
    ]
    parts += [_section(ENTRIES[key], findings[key]) for key in wanted() if key[0] == paper and key in findings]
    return "\n\n".join(parts) + "\n"


def _section(entry: Entry, finding: Finding) -> str:
    facts = {
        "Paper": entry.headline, "Claim": entry.claim, "kvviz": finding.ours, "Measured": finding.run,
        "Note": finding.why, "Call": f"`{entry.call}`",
        "Tested at a small size by": f"`{entry.tested}`" if entry.tested else "",
    }  # fmt: skip
    captions = {
        "kvviz": finding.draw and entry.slug,
        "the paper's numbers": finding.published and f"{entry.slug}-published",
    }
    lines = [
        f"## {_short(entry.item)[0].upper()}{_short(entry.item)[1:]}: {entry.outcome(finding)}",
        entry.shows,
        "\n".join(f"- **{name}**: {text}" for name, text in facts.items() if text),
    ]
    cells = [_picture(entry, caption, name) for caption, name in captions.items() if name]
    if cells:
        lines.append(f"| {' | '.join(cells)} |\n|{'---|' * len(cells)}")
    return "\n\n".join(lines)


def _picture(entry: Entry, caption: str, name: str) -> str:
    alt = html.escape(f"{entry.paper}, {entry.item}, {caption}: {entry.shows}")
    return f'<img src="pictures/{name}.png" width="380" alt="{alt}"><br>{caption}'


def _short(item: str) -> str:
    return item.replace("fig. ", "figure ")


def _table(head: list[str], rows: list[list[str]]) -> str:
    for row in rows:
        if any("\n" in cell for cell in row):
            raise InvalidInputError("data/papers: a cell", repr(row), "one line")
    lines = [f"| {' | '.join(row)} |" for row in (head, *map(_escaped, rows))]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _escaped(row: list[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in row]
