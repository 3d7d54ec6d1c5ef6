"""What each figure and table of the four papers shows, and what kvviz finds: one function per figure or table.

A file holds the entries of one paper, or of its figures or tables. A function's docstring says what the figure or table
shows; its result is a `Finding`. Numbers come from stored results (`sources.py`), never from the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import plotly.graph_objects as go

from kvviz import IncompatibleFileError

# The numbers of figures and tables of each paper.
PAPERS: dict[str, tuple[int, int]] = {
    "ClusterKV": (13, 1),
    "CentroidKV": (5, 18),
    "PQCache": (12, 6),
    "CTkvr": (14, 15),
}
SOURCES = {
    "ClusterKV": "arXiv 2412.03213", "CentroidKV": "OpenReview T3EeupQhGj", "PQCache": "arXiv 2407.12820",
    "CTkvr": "arXiv 2512.15550",
}  # fmt: skip
Outcome = Literal[
    "reproduced", "not reproduced", "schematic", "needs a GPU", "needs a model or data", "not measured yet"
]
Draw = Callable[[], go.Figure]


@dataclass(frozen=True)
class Finding:
    """What kvviz finds for one figure or table.

    `ours` is our number, with its interval, and `run` says how it was measured (model, length, samples). `holds` says
    whether the claim holds in our numbers: a comparison of stored results, never a constant. It is None for a schematic
    figure, and where a GPU, a model or data is missing; `ours` then says what a smaller run shows. `why` explains a
    claim that does not hold, and everything that a reader must know to compare. `draw` draws our figure; `published`
    draws the numbers that the paper prints in the same style, where it prints them.
    """

    ours: str
    holds: bool | None = None
    run: str = ""
    why: str = ""
    draw: Draw | None = None
    published: Draw | None = None
    measured: bool = True


@dataclass(frozen=True)
class Entry:
    """One figure or table of a paper.

    `shows`: what it shows. `headline`: its main number, as the paper gives it. `claim`: what must be true of our
    numbers for "reproduced". `call`: the kvviz call, notebook or command that makes ours. `needs`: what a measurement
    as in the paper lacks here; `call` is then the command for a machine that has it, and `tested` names the test that
    runs it at a small size.
    """

    paper: str
    item: str
    shows: str
    headline: str
    claim: str
    call: str
    needs: Literal["", "a GPU", "a model or data"]
    schematic: bool
    tested: str
    find: Callable[[], Finding]

    @property
    def slug(self) -> str:
        """The name of its pictures, such as "clusterkv-fig-3"."""
        return f"{self.paper} {self.item}".lower().replace(". ", "-").replace(" ", "-")

    def finding(self) -> Finding:
        """What `find` returns; where stored results are missing, which command makes them."""
        try:
            return self.find()
        except IncompatibleFileError as error:
            return Finding(ours=f"not measured yet: {error}", measured=False)

    def outcome(self, finding: Finding) -> Outcome:
        """One of the six outcomes."""
        if not finding.measured:
            return "not measured yet"
        if self.schematic:
            return "schematic"
        if finding.holds is None and self.needs == "a GPU":
            return "needs a GPU"
        if finding.holds is None and self.needs == "a model or data":
            return "needs a model or data"
        return "reproduced" if finding.holds else "not reproduced"


ENTRIES: dict[tuple[str, str], Entry] = {}


def entry(
    paper: str,
    item: str,
    *,
    headline: str,
    call: str,
    claim: str = "",
    needs: Literal["", "a GPU", "a model or data"] = "",
    schematic: bool = False,
    tested: str = "",
) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """A decorator that adds a function to ENTRIES. `item` is "fig. 3" or "table 12" ("table I" for ClusterKV)."""

    def add(find: Callable[[], Finding]) -> Callable[[], Finding]:
        key = (paper, item)
        assert key not in ENTRIES, f"{paper}, {item}: two entries"
        assert schematic or needs or claim, f"{paper}, {item}: what must be true of our numbers?"
        assert bool(tested) == bool(needs), f"{paper}, {item}: which test runs its command at a small size?"
        shows = " ".join((find.__doc__ or "").split())
        ENTRIES[key] = Entry(paper, item, shows, headline, claim, call, needs, schematic, tested, find)
        return find

    return add


def wanted() -> list[tuple[str, str]]:
    """Every figure and table of the four papers, in order: 84."""
    items = []
    for paper, (figures, tables) in PAPERS.items():
        items += [(paper, f"fig. {number}") for number in range(1, figures + 1)]
        items += [(paper, "table I" if paper == "ClusterKV" else f"table {number}") for number in range(1, tables + 1)]
    return items
