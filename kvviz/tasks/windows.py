"""Running text, and windows of it: any number of samples, no two from the same place."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InvalidInputError
from ..models.encoding import fed_ids

if TYPE_CHECKING:
    from ..models import LanguageModel

CHARACTERS_A_TOKEN = 4  # of English; where it is wrong, a window takes another try
GOLDEN = (math.sqrt(5) - 1) / 2


def manual() -> str:
    """English reference prose that comes with Python (`pydoc_data.topics`), sections in alphabetical order."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def running_text(operation: str, file: str | None = None) -> str:
    """The text of a file in UTF-8; `manual` without one.

    `operation` stands in the errors: InvalidInputError for a file that is missing, empty or no text.
    """
    if file is None:
        return manual()
    wanted = "a text file in UTF-8 with running text in it"
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(operation, f"{file} ({error})", wanted) from error
    if not text.strip():
        raise InvalidInputError(operation, f"{file}, which is empty", wanted)
    return text


def window(lm: LanguageModel, text: str, tokens: int, index: int, seed: int) -> tuple[int, str]:
    """Where window number `index` begins, in characters, and the text from there on: at least `tokens` tokens.

    Windows of different numbers begin at different characters, spread evenly: each is a golden section of the text
    farther than the one before. `seed` moves all of them. Raises InvalidInputError for a text with fewer tokens, or
    with fewer windows.
    """
    _enough(lm, text, tokens)
    places = _last(lm, text, tokens) + 1
    if index >= places:
        raise InvalidInputError("a window of a text", f"number {index}, of {tokens} tokens", f"less than {places}")
    step = max(1, round(places * GOLDEN))
    while math.gcd(step, places) > 1:  # so that every place comes once before one comes again
        step += 1
    start = (random.Random(seed).randrange(places) + index * step) % places
    return start, _enough(lm, text[start:], tokens)


def _enough(lm: LanguageModel, text: str, tokens: int) -> str:
    """The beginning of the text that has at least `tokens` tokens, and at most a few times as many."""
    size = min(len(text), CHARACTERS_A_TOKEN * tokens)
    while (found := len(fed_ids(lm, text[:size]))) < tokens:
        if size == len(text):
            raise InvalidInputError("a window of a text", f"a text of {found} tokens", f"at least {tokens} tokens")
        size = min(len(text), 2 * size)
    return text[:size]


def _last(lm: LanguageModel, text: str, tokens: int) -> int:
    """The last character behind which the text has at least `tokens` tokens."""
    size = min(len(text), tokens)
    while size < len(text) and len(fed_ids(lm, text[-size:])) < tokens:
        size = min(len(text), 2 * size)
    size = bisect_left(range(size), tokens, lo=size // 2, key=lambda end: len(fed_ids(lm, text[len(text) - end :])))
    return len(text) - size
