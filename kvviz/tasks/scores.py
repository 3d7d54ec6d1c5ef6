"""How well a written text answers: every score is a number from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence


def found_share(text: str, answers: Sequence[str]) -> float:
    """Share of the answers that occur in the text, ignoring case: RULER's string match for lists of answers.

    Source: RULER (arXiv 2404.06654), section 3.
    """
    return sum(answer.casefold() in text.casefold() for answer in answers) / len(answers)


def found_any(text: str, answers: Sequence[str]) -> float:
    """1 where one of the answers occurs in the text, ignoring case, else 0: RULER's string match for QA."""
    return float(any(answer.casefold() in text.casefold() for answer in answers))
