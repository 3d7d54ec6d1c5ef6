"""Positions of tokens in a prompt, named by text, by a regular expression, by a slice or by number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate

from ..errors import InvalidInputError

SHOWN = 40  # characters of the text around an occurrence in an error


def token_positions(
    operation: str, tokens: str | re.Pattern[str] | int | slice | Iterable[int], texts: Sequence[str]
) -> tuple[int, ...]:
    """The positions that `tokens` names in a prompt, given as the text of each token; ascending.

    A string must occur exactly once; of a pattern all matches count. A token belongs to a match if it has one of its
    characters. Raises InvalidInputError, which names `operation`, if nothing is found, if a string occurs several
    times, or for a position outside the prompt.
    """
    if isinstance(tokens, slice):
        found = tuple(range(len(texts))[tokens])
        if not found:
            raise InvalidInputError(f"{operation}: tokens", repr(tokens), f"some of the prompt's {len(texts)} tokens")
        return found if found == tuple(sorted(found)) else tuple(sorted(found))
    if isinstance(tokens, str | re.Pattern):
        return _matches(operation, tokens, texts)
    numbers = sorted({tokens} if isinstance(tokens, int) else set(tokens))
    outside = [number for number in numbers if not 0 <= number < len(texts)]
    if outside:
        raise InvalidInputError(
            f"{operation}: tokens", f"position {outside[0]}", f"0 to {len(texts) - 1}, a position in the prompt"
        )
    return tuple(numbers)


def _matches(operation: str, wanted: str | re.Pattern[str], texts: Sequence[str]) -> tuple[int, ...]:
    text, ends = "".join(texts), list(accumulate(map(len, texts)))
    pattern = re.compile(re.escape(wanted)) if isinstance(wanted, str) else wanted
    spans = [match.span() for match in pattern.finditer(text) if match.end() > match.start()]
    if not spans:
        raise InvalidInputError(f"{operation}: tokens", f"{_shown(wanted)}, which does not occur in the prompt",
                                "text that occurs in it, or positions")  # fmt: skip
    positions = [
        [place for place, end in enumerate(ends) if end > first and end - len(texts[place]) < last]
        for first, last in spans
    ]
    if isinstance(wanted, str) and len(spans) > 1:
        where = "; ".join(
            f"{of_span[0]} to {of_span[-1]} in {text[max(first - SHOWN, 0) : last + SHOWN]!r}"
            for of_span, (first, last) in zip(positions[:3], spans[:3], strict=True)
        )
        raise InvalidInputError(
            f"{operation}: tokens",
            f"{_shown(wanted)}, which occurs {len(spans)} times, at positions {where}",
            "text that occurs once, the positions of one occurrence, or a compiled pattern for all of them",
        )
    return tuple(sorted({position for of_span in positions for position in of_span}))


def _shown(wanted: str | re.Pattern[str]) -> str:
    return repr(wanted) if isinstance(wanted, str) else f"the pattern {wanted.pattern!r}"
