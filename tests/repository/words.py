"""Phrases that kvviz does not use, and what it writes instead: `python tests/repository/words.py`, part of `make lint`.

They are looked for in all tracked texts and sources, in Markdown without code. Exit status 1 if one is found.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SUFFIXES = (".ipynb", ".js", ".md", ".py", ".pyi")
LEFT_OUT = ("kvviz/widgets/static/", "tests/repository/words.py", "tests/repository/test_words.py")
_OBJECT = r"(?:an?|all|as many|each|every|everything|no|only|some|that many|the|these|those|[\d,]+)"
_THING = r"(?:block|chunk|cluster|head|KV head|layer|method|page|panel|partition|query|row|step|task|text|token)"

_SHARED = rf"(?:bits?|bytes|centroids?|entries|keys|times|tokens|µs|ms) an? {_THING}"  # followed by a verb, it is right

# A phrase as a regular expression, and what to write.
PHRASES: dict[str, str] = {
    rf"\b(?:attends?|attending) (?:also )?(?:{_OBJECT}|tokens)\b": "attend to a token",
    rf"\battended {_OBJECT}\b": "attended to",
    r"\b(?:is|are|was|were|be|been)(?: always| never| only)? attended\b(?! to\b)": "attended to",
    rf"\b(?:an?|one) (?:bar|column|curve|dot|line|mark|panel|ring|row) an? {_THING}\b": "one curve per method",
    rf"\b{_SHARED}\b(?! (?:attend|hold|method|had))": "per token, per head",
    r"first tokens that are always taken": "attention sinks (then: sinks)",
    r"\ballowances?\b": "budget per step",
    r"\battention received\b": "accumulated attention",
    r"\bmultiply-adds?\b": "MACs, FLOPs",
    r"\b(?:removes?|drops?|without|once|are) doubles\b": "duplicates",
    r"\b(?:parks?|parked) (?:keys|values|tokens)\b": "offload, fetch, prefetch, evict",
    r"\bvalue blend\b": "value correction",
    r"\bmerged apart\b": "partial attention merged by log-sum-exp",
    r"\bsurround(?:s|ed)? (?:with|by) sinks\b": "add sinks and recent window",
    r"\brows of choice\b": "selection heads",
    r"\bcontests?\b": "benchmark",
    r"time to the inertia that the other": "time to match the baseline's inertia",
    r"single times on a shared machine": "absolute times vary between machines",
    r"[Ww]hat a prompt led to": "the result of a generation",
    r"that a model of this geometry has not\b": "layers outside the model",
    r"not missing here any more": "this query no longer asks for it",
    r"none of the prompt's own": "no list of the prompt remains",
    r"is all RoPE": "the locality comes from RoPE alone",
    r"right and empty": "true, but vacuous here",
    r"\b[Ii]t pays with\b": "its price is",
    r"Nothing under a `?trust_remote_code": "never load pickles or remote code",
}  # fmt: skip
_CODE = re.compile(r"```.*?```|`(?:[^`\n]|\n(?!\n))*`", re.DOTALL)


class Found(NamedTuple):
    """A phrase in a file, with the words around it and what to write."""

    file: str
    words: str
    write: str

    def __str__(self) -> str:
        return f"{self.file}: …{self.words}… write: {self.write}"


def found_in(file: str, text: str) -> Iterator[Found]:
    """The phrases in a text, whose lines may be wrapped."""
    joined = re.sub(r"\s*\n[\s#*/]*", " ", text)
    for phrase, write in PHRASES.items():
        for match in re.finditer(phrase, joined):
            yield Found(file, joined[max(0, match.start() - 30) : match.end() + 30], write)


def texts(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Every tracked file with its text: Markdown, also that of notebooks, without code."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    for file in listed.splitlines():
        path = root / file
        if not file.endswith(SUFFIXES) or file.startswith(LEFT_OUT) or not path.exists():
            continue
        text = path.read_text(encoding="utf-8")
        if file.endswith(".md"):
            yield file, _CODE.sub("`code`", text)
        elif file.endswith(".ipynb"):
            for number, cell in enumerate(json.loads(text)["cells"]):
                source = "".join(cell["source"])
                yield (
                    f"{file}, cell {number}",
                    _CODE.sub("`code`", source) if cell["cell_type"] == "markdown" else source,
                )
        else:
            yield file, text


def main() -> int:
    """Print each phrase that was found; the number of them decides the exit status."""
    found = [phrase for file, text in texts() for phrase in found_in(file, text)]
    for phrase in found:
        print(phrase)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
