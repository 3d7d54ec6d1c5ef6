"""The words of a diagnosis: the stages of a selection, and where a token was lost."""

from __future__ import annotations

from collections.abc import Mapping

VERDICTS: Mapping[str, str] = {  # what is said of a token that the stage lost
    "kept": "not kept",
    "grouping": "badly grouped",
    "ranking": "badly scored",
    "trimming": "trimmed",
}
OUTCOMES = ("attended", "not wanted", *VERDICTS.values(), "crowded out")
EVERYTHING = "all"  # in place of a stage: the head attends to the oracle's tokens
